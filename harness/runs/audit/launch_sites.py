"""Which launches a module has, and what a tuner would add to them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Any

from harness.runs.audit.host_scope import HostLaunch, HostScope
from harness.runs.audit.host_values import HostValue
from harness.runs.audit.lazy_release import LazyModule, get_callee
from harness.runs.audit.preconditions import find_preconditions
from harness.runs.audit.syntax_walk import iterate_children


def find_launches(
    module: LazyModule, kernel_names: Collection[str]
) -> Iterator[tuple[str, HostLaunch]]:
    """Each launch in a module of a kernel of these names."""
    for scope, call in _iterate_launch_calls(module.tree, None):
        assert isinstance(call.func, ast.Subscript)
        target: ast.expr = call.func.value
        while isinstance(target, ast.Call) and target.args:
            target = target.args[0]
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name not in kernel_names:
            continue
        host = HostScope(module, scope, call.lineno)
        arguments: dict[str | int, HostValue] = {}
        for place, argument in enumerate(call.args):
            if isinstance(argument, ast.Starred):
                break
            arguments[place] = host.evaluate_argument(argument)
        arguments |= {
            one.arg: host.evaluate_argument(one.value) for one in call.keywords if one.arg
        }
        where = scope.name if scope is not None else "the module"
        grid, sure = host.parse_grid_with_certainty(call.func.slice)
        asked = find_preconditions(host, scope, call.lineno)
        yield (
            name,
            HostLaunch(
                module.path, call.lineno, where, arguments, grid, sure, asked, host.tensor_ranks,
                host.side_names,
            ),
        )  # fmt: skip


def _iterate_launch_calls(
    node: ast.AST, scope: ast.FunctionDef | None
) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
    for child in iterate_children(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Subscript):
            yield scope, child
        inner = child if isinstance(child, ast.FunctionDef) else scope
        yield from _iterate_launch_calls(child, inner)


def read_tuner_constants(node: ast.FunctionDef) -> dict[str, Any]:
    """The constants of a tuner's first configuration."""
    for decorator in node.decorator_list:
        for inner in ast.walk(decorator):
            if (
                isinstance(inner, ast.Call)
                and ast.unparse(get_callee(inner)).endswith("Config")
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
