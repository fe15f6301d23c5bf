"""The launches in a module, and the constants that a tuner adds to them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from harness.runs.audit.host_scope import HostLaunch, HostScope
from harness.runs.audit.host_values import HostValue
from harness.runs.audit.lazy_release import LazyModule, get_callee
from harness.runs.audit.preconditions import find_preconditions
from harness.runs.audit.syntax_walk import iterate_children


def find_launches(
    module: LazyModule, kernel_names: Collection[str]
) -> Iterator[tuple[str, HostLaunch]]:
    """Find the launches of kernels of these names."""
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
        for position, argument in enumerate(call.args):
            if isinstance(argument, ast.Starred):
                break
            arguments[position] = host.evaluate_argument(argument)
        for keyword in call.keywords:
            if keyword.arg:
                arguments[keyword.arg] = host.evaluate_argument(keyword.value)
        grid_node = call.func.slice
        grid, is_grid_certain = host.evaluate_with_certainty(partial(host.parse_grid, grid_node))
        launch = HostLaunch(
            file=module.path,
            line=call.lineno,
            function=scope.name if scope is not None else "the module",
            arguments=arguments,
            grid=grid,
            is_grid_certain=is_grid_certain,
            preconditions=find_preconditions(host, scope, call.lineno),
            tensor_ranks=host.tensor_ranks,
            side_names=host.side_names,
        )
        yield name, launch


def _iterate_launch_calls(
    node: ast.AST, scope: ast.FunctionDef | None
) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
    for child in iterate_children(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Subscript):
            yield scope, child
        inner = child if isinstance(child, ast.FunctionDef) else scope
        yield from _iterate_launch_calls(child, inner)


def read_tuner_constants(node: ast.FunctionDef) -> dict[str, Any]:
    """Read the constants of a tuner's first configuration."""
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
