"""What a launching function asks before it launches: asserts, branches, early ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.runs.audit.expressions import UNKNOWN_TEST, Expression, iterate_symbols
from harness.runs.audit.host_values import HostScopeProtocol

_COMPARISON_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def find_preconditions(
    host: HostScopeProtocol, scope: ast.FunctionDef | None, line: int
) -> tuple[Expression, ...]:
    """Tests that all hold where that line is reached."""
    return (
        tuple(dict.fromkeys(_iterate_preconditions(host, scope.body, line)))
        if scope is not None
        else ()
    )


def _iterate_preconditions(
    host: HostScopeProtocol, body: list[ast.stmt], line: int
) -> Iterator[Expression]:
    for one in body:
        if one.lineno > line:
            return
        if one.lineno <= line <= (one.end_lineno or 0):
            if isinstance(one, ast.If):
                inside = one.body[0].lineno <= line <= _find_last_line(one.body)
                found = _to_certain_test(host, one.test)
                yield found if inside else ("not", found)
            elif isinstance(one, ast.Match):
                yield (UNKNOWN_TEST, *_iterate_symbols(host, one.subject))
            for field in ("body", "orelse", "finalbody"):
                inner = getattr(one, field, [])
                if inner and inner[0].lineno <= line <= _find_last_line(inner):
                    yield from _iterate_preconditions(host, inner, line)
            return
        if isinstance(one, ast.Assert):
            yield _to_certain_test(host, one.test)
        elif isinstance(one, ast.If) and not one.orelse and _is_exit(one.body[-1]):
            yield ("not", _to_certain_test(host, one.test))


def _to_certain_test(host: HostScopeProtocol, node: ast.expr) -> Expression:
    """Nothing is known of a test of names that are bound to one thing and then to another."""
    found, sure = host.evaluate_with_certainty(lambda: to_test_expression(host, node))
    return found if sure else (UNKNOWN_TEST, *_iterate_symbols(host, node))


def _find_last_line(body: list[ast.stmt]) -> int:
    return body[-1].end_lineno or 0


def _is_exit(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Raise, ast.Return, ast.Continue, ast.Break))


def to_test_expression(host: HostScopeProtocol, node: ast.expr) -> Expression:
    """A test of numbers; of any other, the words that it asks for."""
    match node:
        case ast.Constant(value=bool() as value):
            return int(value)
        case ast.BoolOp(op=op, values=parts):
            return (
                "and" if isinstance(op, ast.And) else "or",
                *(to_test_expression(host, one) for one in parts),
            )
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return ("not", to_test_expression(host, inner))
        case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Tuple() | ast.List() as some]):
            number, others = host.to_number(left), [host.to_number(one) for one in some.elts]
            if number is not None and None not in others:
                return ("or", *(("==", number, one) for one in others))
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(op) in _COMPARISON_SIGNS for op in ops
        ):
            numbers = [host.to_number(one) for one in (left, *others)]
            if None not in numbers and not any(_is_non_number(one) for one in (left, *others)):
                pairs = zip(ops, numbers[:-1], numbers[1:], strict=True)
                return (
                    "and",
                    *((_COMPARISON_SIGNS[type(op)], one, other) for op, one, other in pairs),
                )
        case ast.Name(id=name) if name in host.assignments and name not in host.names_in_progress:
            assigned, place = host.assignments[name]
            if place is None:
                host.followed_names.add(name)
                host.names_in_progress.add(name)
                found = to_test_expression(host, assigned)
                host.names_in_progress.discard(name)
                return found
    return (UNKNOWN_TEST, *_iterate_symbols(host, node))


def _is_non_number(node: ast.expr) -> bool:
    """A shape, a type, a word, nothing: what is compared is no number."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, int)
    return isinstance(node, ast.Attribute) and node.attr in ("dtype", "device", "shape")


def _iterate_symbols(host: HostScopeProtocol, node: ast.expr) -> Iterator[Expression]:
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Name, ast.Subscript, ast.Call, ast.Attribute)):
            number = host.to_number(inner)
            if number is not None:
                yield from iterate_symbols(number)
