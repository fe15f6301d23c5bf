"""Tensors whose shape a launching function says: it makes them, or takes their shape apart."""

from __future__ import annotations

import ast

from harness.audit.expressions import Expression
from harness.audit.given import Given, Host

_MAKERS = frozenset("empty zeros ones full new_empty new_zeros new_ones new_full".split())
_LIKE = frozenset("empty_like zeros_like ones_like full_like rand_like randn_like".split())
_WHOLE = frozenset(  # as many elements as before, and the first one first
    "contiguous view reshape clone flatten squeeze unsqueeze detach cuda unflatten view_as data "
    "zero_ fill_ to float half int long".split()
)


def sides(host: Host, node: ast.expr) -> list[ast.expr]:
    """The shape that a tensor is made with; nothing where it is made elsewhere."""
    if not isinstance(node, ast.Name) or node.id not in host.assigned:
        return []
    made, place = host.assigned[node.id]
    return _sides_of(host, made) if place is None else []


def _sides_of(host: Host, made: ast.expr) -> list[ast.expr]:
    if not isinstance(made, ast.Call) or _name(made) not in _MAKERS:
        return []
    named = [one.value for one in made.keywords if one.arg == "size"]
    given = named or made.args
    if len(given) > 1 and not isinstance(given[0], (ast.Tuple, ast.List, ast.Attribute)):
        return [] if any(isinstance(one, ast.Starred) for one in given) else list(given)
    shape = given[0] if given else None
    if isinstance(shape, ast.Name) and shape.id in host.assigned:
        host.touched.add(shape.id)
        shape = host.assigned[shape.id][0]
    match shape:
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return [] if any(isinstance(one, ast.Starred) for one in elements) else elements
        case ast.Attribute(value=other, attr="shape"):
            return sides(host, other)
        case ast.expr() if host.given(shape).kind in ("number", "constant"):
            return [shape]
    return []


def stride(host: Host, node: ast.expr, place: int | None) -> Given | None:
    found = sides(host, node)
    if place is None or not -len(found) <= place < len(found):
        return None
    return _product(host, found[place % len(found) + 1 :])


def elements(host: Host, node: ast.expr, deep: int = 8) -> Expression | None:
    """How many elements a tensor has, if this function says so."""
    match node:
        case ast.Name(id=name) if name in host.ranks and not sides(host, node):
            # Bound to another one of that shape at most: whoever asks looks at how often it is.
            return ("*", *(f"{name}.shape[{side}]" for side in range(host.ranks[name])))
        case ast.Name(id=name) if deep and name in host.assigned:
            value, place = host.assigned[name]
            host.touched.add(name)
            return elements(host, value, deep - 1) if place is None else None
        case ast.IfExp(test=ast.Compare(ops=[ast.Is()]), body=made):
            return elements(host, made, deep)
        case ast.IfExp(test=ast.Compare(ops=[ast.IsNot()]), orelse=made):
            return elements(host, made, deep)
        case ast.Call() if _sides_of(host, node):
            product = _product(host, _sides_of(host, node))
            return None if product is None else product.expression
        case ast.Call(args=[other, *_]) if _name(node) in _LIKE:
            return elements(host, other, deep)
        case ast.Call(func=ast.Attribute(value=other, attr=attr)) if attr in _WHOLE:
            other_kind = attr == "view" and "torch." in ast.unparse(node.args)  # type: ignore[arg-type]
            return None if other_kind else elements(host, other, deep)
    return None


def _product(host: Host, parts: list[ast.expr]) -> Given | None:
    found = host.folded("*", 1, 1)
    for part in parts:
        number = host.number(part)
        if number is None:
            return None
        found = host.folded("*", found.expression, number)
    return found


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]
