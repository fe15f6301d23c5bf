"""The preconditions of a launch: asserts, branches and early exits before it.

Example: after `assert rows % 8 == 0` and `if rows > 100: return` a launch has the preconditions
`rows % 8 == 0` and `not rows > 100`. A test that is not about numbers is unknown, with its words.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.runs.audit.expressions import UNKNOWN_TEST, Expression, iterate_symbols
from harness.runs.audit.host_values import HostNames

_COMPARISON_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def find_preconditions(
    host: HostNames, scope: ast.FunctionDef | None, line: int
) -> tuple[Expression, ...]:
    """Find the tests that hold where that line is reached."""
    if scope is None:
        return ()
    return tuple(dict.fromkeys(_iterate_preconditions(host, scope.body, line)))


def _iterate_preconditions(
    host: HostNames, body: list[ast.stmt], line: int
) -> Iterator[Expression]:
    for statement in body:
        if statement.lineno > line:
            return
        if statement.lineno <= line <= (statement.end_lineno or 0):
            if isinstance(statement, ast.If):
                test = _to_certain_test(host, statement.test)
                yield test if _contains_line(statement.body, line) else ("not", test)
            elif isinstance(statement, ast.Match):
                yield (UNKNOWN_TEST, *_iterate_symbols(host, statement.subject))
            for field in ("body", "orelse", "finalbody"):
                inner = getattr(statement, field, [])
                if inner and _contains_line(inner, line):
                    yield from _iterate_preconditions(host, inner, line)
            return
        if isinstance(statement, ast.Assert):
            yield _to_certain_test(host, statement.test)
        elif (
            isinstance(statement, ast.If) and not statement.orelse and _is_exit(statement.body[-1])
        ):
            yield ("not", _to_certain_test(host, statement.test))


def _to_certain_test(host: HostNames, node: ast.expr) -> Expression:
    """Translate a test; one with a name that is bound more than once is unknown."""
    test, is_certain = host.evaluate_with_certainty(lambda: to_test_expression(host, node))
    return test if is_certain else (UNKNOWN_TEST, *_iterate_symbols(host, node))


def _contains_line(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or 0)


def _is_exit(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Raise, ast.Return, ast.Continue, ast.Break))


def to_test_expression(host: HostNames, node: ast.expr) -> Expression:
    """Translate a test of numbers; any other becomes unknown, with its words."""
    match node:
        case ast.Constant(value=bool() as value):
            return int(value)
        case ast.BoolOp(op=op, values=parts):
            name = "and" if isinstance(op, ast.And) else "or"
            return (name, *(to_test_expression(host, part) for part in parts))
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
                return ("and", *((_COMPARISON_SIGNS[type(op)], *sides) for op, *sides in pairs))
        case ast.Name(id=name) if name in host.assignments and name not in host.names_in_progress:
            assigned, position = host.assignments[name]
            if position is None:
                host.followed_names.add(name)
                host.names_in_progress.add(name)
                test = to_test_expression(host, assigned)
                host.names_in_progress.discard(name)
                return test
    return (UNKNOWN_TEST, *_iterate_symbols(host, node))


def _is_non_number(node: ast.expr) -> bool:
    """Return whether an operand of a comparison is a shape, a type, a string or None."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, int)
    return isinstance(node, ast.Attribute) and node.attr in ("dtype", "device", "shape")


def _iterate_symbols(host: HostNames, node: ast.expr) -> Iterator[Expression]:
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Name, ast.Subscript, ast.Call, ast.Attribute)):
            number = host.to_number(inner)
            if number is not None:
                yield from iterate_symbols(number)
