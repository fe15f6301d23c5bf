"""What a launching function asks before it launches: asserts, branches, early ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.audit.expressions import UNKNOWN, Expression, symbols
from harness.audit.given import Host

_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def demands(host: Host, scope: ast.FunctionDef | None, line: int) -> tuple[Expression, ...]:
    """Tests that all hold where that line is reached."""
    return tuple(dict.fromkeys(_on_the_way(host, scope.body, line))) if scope is not None else ()


def _on_the_way(host: Host, body: list[ast.stmt], line: int) -> Iterator[Expression]:
    for one in body:
        if one.lineno > line:
            return
        if one.lineno <= line <= (one.end_lineno or 0):
            if isinstance(one, ast.If):
                inside = one.body[0].lineno <= line <= _end(one.body)
                found = _surely(host, one.test)
                yield found if inside else ("not", found)
            elif isinstance(one, ast.Match):
                yield (UNKNOWN, *_asked(host, one.subject))
            for field in ("body", "orelse", "finalbody"):
                inner = getattr(one, field, [])
                if inner and inner[0].lineno <= line <= _end(inner):
                    yield from _on_the_way(host, inner, line)
            return
        if isinstance(one, ast.Assert):
            yield _surely(host, one.test)
        elif isinstance(one, ast.If) and not one.orelse and _ends(one.body[-1]):
            yield ("not", _surely(host, one.test))


def _surely(host: Host, node: ast.expr) -> Expression:
    """Nothing is known of a test of names that are bound to one thing and then to another."""
    found, sure = host.surely(lambda: test(host, node))
    return found if sure else (UNKNOWN, *_asked(host, node))


def _end(body: list[ast.stmt]) -> int:
    return body[-1].end_lineno or 0


def _ends(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Raise, ast.Return, ast.Continue, ast.Break))


def test(host: Host, node: ast.expr) -> Expression:
    """A test of numbers; of any other, the words that it asks for."""
    match node:
        case ast.Constant(value=bool() as value):
            return int(value)
        case ast.BoolOp(op=op, values=parts):
            return ("and" if isinstance(op, ast.And) else "or", *(test(host, one) for one in parts))
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return ("not", test(host, inner))
        case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Tuple() | ast.List() as some]):
            number, others = host.number(left), [host.number(one) for one in some.elts]
            if number is not None and None not in others:
                return ("or", *(("==", number, one) for one in others))
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(op) in _SIGNS for op in ops
        ):
            numbers = [host.number(one) for one in (left, *others)]
            if None not in numbers and not any(_is_no_number(one) for one in (left, *others)):
                pairs = zip(ops, numbers[:-1], numbers[1:], strict=True)
                return ("and", *((_SIGNS[type(op)], one, other) for op, one, other in pairs))
        case ast.Name(id=name) if name in host.assigned and name not in host.following:
            assigned, place = host.assigned[name]
            if place is None:
                host.touched.add(name)
                host.following.add(name)
                found = test(host, assigned)
                host.following.discard(name)
                return found
    return (UNKNOWN, *_asked(host, node))


def _is_no_number(node: ast.expr) -> bool:
    """A shape, a type, a word, nothing: what is compared is no number."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, int)
    return isinstance(node, ast.Attribute) and node.attr in ("dtype", "device", "shape")


def _asked(host: Host, node: ast.expr) -> Iterator[Expression]:
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Name, ast.Subscript, ast.Call, ast.Attribute)):
            number = host.number(inner)
            if number is not None:
                yield from symbols(number)
