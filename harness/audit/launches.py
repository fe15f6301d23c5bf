"""Which launches a module has, and what a tuner would add to them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Any

from harness.audit.demands import demands
from harness.audit.given import Given
from harness.audit.host import Host, Launch
from harness.audit.loading import Module, called
from harness.audit.syntax import children


def launches(module: Module, kernels: Collection[str]) -> Iterator[tuple[str, Launch]]:
    """Each launch in a module of a kernel of these names."""
    for scope, call in _calls(module.code, None):
        assert isinstance(call.func, ast.Subscript)
        target: ast.expr = call.func.value
        while isinstance(target, ast.Call) and target.args:
            target = target.args[0]
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name not in kernels:
            continue
        host = Host(module, scope, call.lineno)
        arguments: dict[str | int, Given] = {}
        for place, argument in enumerate(call.args):
            if isinstance(argument, ast.Starred):
                break
            arguments[place] = host.argument(argument)
        arguments |= {one.arg: host.argument(one.value) for one in call.keywords if one.arg}
        where = scope.name if scope is not None else "the module"
        grid, sure = host.surely_grid(call.func.slice)
        asked = demands(host, scope, call.lineno)
        yield (
            name,
            Launch(
                module.path, call.lineno, where, arguments, grid, sure, asked, host.ranks,
                host.called,
            ),
        )  # fmt: skip


def _calls(
    node: ast.AST, scope: ast.FunctionDef | None
) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
    for child in children(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Subscript):
            yield scope, child
        inner = child if isinstance(child, ast.FunctionDef) else scope
        yield from _calls(child, inner)


def configured(node: ast.FunctionDef) -> dict[str, Any]:
    """The constants of a tuner's first configuration."""
    for decorator in node.decorator_list:
        for inner in ast.walk(decorator):
            if (
                isinstance(inner, ast.Call)
                and ast.unparse(called(inner)).endswith("Config")
                and inner.args
                and isinstance(inner.args[0], ast.Dict)
            ):
                pairs = zip(inner.args[0].keys, inner.args[0].values, strict=True)
                return {
                    str(key.value): value.value
                    for key, value in pairs
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
                }
    return {}
