"""Tensors whose shape a launching function says: it makes them, or takes their shape apart."""

from __future__ import annotations

import ast

from harness.runs.audit.expressions import Expression
from harness.runs.audit.host_values import HostScopeProtocol, HostValue

_TENSOR_MAKERS = frozenset("empty zeros ones full new_empty new_zeros new_ones new_full".split())
_LIKE_MAKERS = frozenset("empty_like zeros_like ones_like full_like rand_like randn_like".split())
_SIZE_PRESERVING = frozenset(  # as many elements as before, and the first one first
    "contiguous view reshape clone flatten squeeze unsqueeze detach cuda unflatten view_as data "
    "zero_ fill_ to float half int long".split()
)


def find_sides(host: HostScopeProtocol, node: ast.expr) -> list[ast.expr]:
    """The shape that a tensor is made with; nothing where it is made elsewhere."""
    if not isinstance(node, ast.Name) or node.id not in host.assignments:
        return []
    made, place = host.assignments[node.id]
    return _find_call_sides(host, made) if place is None else []


def _find_call_sides(host: HostScopeProtocol, call: ast.expr) -> list[ast.expr]:
    if not isinstance(call, ast.Call) or _get_callee_name(call) not in _TENSOR_MAKERS:
        return []
    named = [one.value for one in call.keywords if one.arg == "size"]
    given = named or call.args
    if len(given) > 1 and not isinstance(given[0], (ast.Tuple, ast.List, ast.Attribute)):
        return [] if any(isinstance(one, ast.Starred) for one in given) else list(given)
    shape = given[0] if given else None
    if isinstance(shape, ast.Name) and shape.id in host.assignments:
        host.followed_names.add(shape.id)
        shape = host.assignments[shape.id][0]
    match shape:
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return [] if any(isinstance(one, ast.Starred) for one in elements) else elements
        case ast.Attribute(value=other, attr="shape"):
            return find_sides(host, other)
        case ast.expr() if host.evaluate(shape).kind in ("number", "constant"):
            return [shape]
    return []


def compute_stride(
    host: HostScopeProtocol, node: ast.expr, dimension: int | None
) -> HostValue | None:
    found = find_sides(host, node)
    if dimension is None or not -len(found) <= dimension < len(found):
        return None
    return _multiply_sides(host, found[dimension % len(found) + 1 :])


def count_elements(host: HostScopeProtocol, node: ast.expr, depth: int = 8) -> Expression | None:
    """How many elements a tensor has, if this function says so."""
    match node:
        case ast.Name(id=name) if name in host.tensor_ranks and not find_sides(host, node):
            # Bound to another one of that shape at most: whoever asks looks at how often it is.
            return ("*", *(f"{name}.shape[{side}]" for side in range(host.tensor_ranks[name])))
        case ast.Name(id=name) if depth and name in host.assignments:
            value, place = host.assignments[name]
            host.followed_names.add(name)
            return count_elements(host, value, depth - 1) if place is None else None
        case ast.IfExp(test=ast.Compare(ops=[ast.Is()]), body=made):
            return count_elements(host, made, depth)
        case ast.IfExp(test=ast.Compare(ops=[ast.IsNot()]), orelse=made):
            return count_elements(host, made, depth)
        case ast.Call() if _find_call_sides(host, node):
            product = _multiply_sides(host, _find_call_sides(host, node))
            return None if product is None else product.expression
        case ast.Call(args=[other, *_]) if _get_callee_name(node) in _LIKE_MAKERS:
            return count_elements(host, other, depth)
        case ast.Call(func=ast.Attribute(value=other, attr=attr)) if attr in _SIZE_PRESERVING:
            other_kind = attr == "view" and "torch." in ast.unparse(node.args)  # type: ignore[arg-type]
            return None if other_kind else count_elements(host, other, depth)
    return None


def _multiply_sides(host: HostScopeProtocol, factors: list[ast.expr]) -> HostValue | None:
    found = host.fold("*", 1, 1)
    for part in factors:
        number = host.to_number(part)
        if number is None:
            return None
        found = host.fold("*", found.expression, number)
    return found


def _get_callee_name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]
