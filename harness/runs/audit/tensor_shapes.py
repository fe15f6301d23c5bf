"""The sizes of tensors that a launching function makes, or whose shape it unpacks."""

from __future__ import annotations

import ast

from harness.runs.audit.expressions import Expression
from harness.runs.audit.host_values import (
    LIKE_MAKERS,
    SHAPED_MAKERS,
    SIZE_PRESERVING,
    HostNames,
    HostValue,
)


def find_sides(host: HostNames, node: ast.expr) -> list[ast.expr]:
    """Find the sides of a tensor that the function makes; none if another function makes it."""
    if not isinstance(node, ast.Name) or node.id not in host.assignments:
        return []
    value, position = host.assignments[node.id]
    return _find_call_sides(host, value) if position is None else []


def _find_call_sides(host: HostNames, call: ast.expr) -> list[ast.expr]:
    if not isinstance(call, ast.Call) or _get_callee_name(call) not in SHAPED_MAKERS:
        return []
    arguments = [each.value for each in call.keywords if each.arg == "size"] or call.args
    if len(arguments) > 1 and not isinstance(arguments[0], (ast.Tuple, ast.List, ast.Attribute)):
        return _unless_starred(arguments)
    shape = arguments[0] if arguments else None
    if isinstance(shape, ast.Name) and shape.id in host.assignments:
        host.followed_names.add(shape.id)
        shape = host.assignments[shape.id][0]
    match shape:
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return _unless_starred(elements)
        case ast.Attribute(value=other, attr="shape"):
            return find_sides(host, other)
        case ast.expr() if host.evaluate(shape).kind in ("number", "constant"):
            return [shape]
    return []


def compute_stride(host: HostNames, node: ast.expr, dimension: int | None) -> HostValue | None:
    sides = find_sides(host, node)
    if dimension is None or not -len(sides) <= dimension < len(sides):
        return None
    return _multiply_sides(host, sides[dimension % len(sides) + 1 :])


def count_elements(host: HostNames, node: ast.expr, depth: int = 8) -> Expression | None:
    """Count the elements of a tensor, if this function defines them."""
    match node:
        case ast.Name(id=name) if name in host.tensor_ranks and not find_sides(host, node):
            # If the name is bound again, the value is not certain.
            return ("*", *(f"{name}.shape[{side}]" for side in range(host.tensor_ranks[name])))
        case ast.Name(id=name) if depth and name in host.assignments:
            value, position = host.assignments[name]
            host.followed_names.add(name)
            return count_elements(host, value, depth - 1) if position is None else None
        case ast.IfExp(test=ast.Compare(ops=[ast.Is()]), body=value):
            return count_elements(host, value, depth)
        case ast.IfExp(test=ast.Compare(ops=[ast.IsNot()]), orelse=value):
            return count_elements(host, value, depth)
        case ast.Call() if sides := _find_call_sides(host, node):
            product = _multiply_sides(host, sides)
            return None if product is None else product.expression
        case ast.Call(args=[other, *_]) if _get_callee_name(node) in LIKE_MAKERS:
            return count_elements(host, other, depth)
        case ast.Call(func=ast.Attribute(value=other, attr=attr)) if attr in SIZE_PRESERVING:
            if attr == "view" and any("torch." in ast.unparse(argument) for argument in node.args):
                return None  # a view as another type has another number of elements
            return count_elements(host, other, depth)
    return None


def _multiply_sides(host: HostNames, factors: list[ast.expr]) -> HostValue | None:
    product = host.fold("*", 1, 1)
    for factor in factors:
        number = host.to_number(factor)
        if number is None:
            return None
        product = host.fold("*", product.expression, number)
    return product


def _unless_starred(elements: list[ast.expr]) -> list[ast.expr]:
    return [] if any(isinstance(each, ast.Starred) for each in elements) else list(elements)


def _get_callee_name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]
