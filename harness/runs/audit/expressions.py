"""Host numbers as expressions over the words of the caller's code: sums, roundings, comparisons.

Example: `cdiv(x.shape[0], 64) * 2` is `("*", ("cdiv", "x.shape[0]", 64), 2)`; its symbol is
`x.shape[0]`, and with 130 rows its value is 6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import Any

# A number, a word of the caller, or an operation on expressions.
Expression = int | str | tuple[Any, ...]

OPERATIONS: dict[str, Callable[..., int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda *many: prod(many),
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "cdiv": lambda a, b: -(-a // b) if b else 0,
    "next_power_of_2": lambda a: 1 << max(0, a - 1).bit_length(),
    "min": min,
    "max": max,
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
UNKNOWN_TEST = "unknown"  # the operation of a test that cannot be evaluated, with its words
_ROW_COUNT = re.compile(r"(\w+)\.shape\[0\] \* \1\.shape\[1\]$")
_ROW_LENGTH = re.compile(r"(\w+)\.shape\[-?[1-9]\]( \* \1\.shape\[-?[1-9]\])+$")


def evaluate_expression(expression: Expression, value_of: Callable[[str], int]) -> int:
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str) or _is_row_product(expression):
        return value_of(render_expression(expression))
    name, *parts = expression
    return OPERATIONS[name](*(evaluate_expression(part, value_of) for part in parts))


def evaluate_test(test: Expression, value_of: Callable[[str], int]) -> bool | None:
    """Return whether a test is true; None if that is unknown."""
    if not isinstance(test, tuple):
        return bool(evaluate_expression(test, value_of))
    name, *parts = test
    if name == UNKNOWN_TEST:
        return None
    if name in COMPARISONS:
        return COMPARISONS[name](*(evaluate_expression(part, value_of) for part in parts))
    if name == "not":
        inner = evaluate_test(parts[0], value_of)
        return None if inner is None else not inner
    if name in ("and", "or"):
        results = [evaluate_test(part, value_of) for part in parts]
        decisive = name == "or"
        return decisive if decisive in results else None if None in results else not decisive
    return bool(evaluate_expression(test, value_of))


@cache
def _is_row_product(expression: tuple[Any, ...]) -> bool:
    """Return whether the product is of sides of one tensor: the number or length of its rows."""
    text = render_expression(expression)
    return _ROW_COUNT.match(text) is not None or _ROW_LENGTH.match(text) is not None


def iterate_symbols(expression: Expression) -> Iterator[str]:
    if isinstance(expression, str) or (
        isinstance(expression, tuple) and _is_row_product(expression)
    ):
        yield render_expression(expression)
    elif isinstance(expression, tuple):
        for part in expression[1:]:
            yield from iterate_symbols(part)


@cache
def has_several_symbols(expression: Expression) -> bool:
    """Return whether there are several symbols, so that a name of the whole names none of them."""
    return len(set(iterate_symbols(expression))) > 1


def iterate_words(expression: Expression) -> Iterator[str]:
    """Iterate the words; a product yields each of its words."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, tuple):
        for part in expression[1:]:
            yield from iterate_words(part)


def render_expression(expression: Expression) -> str:
    """Render the expression in the caller's syntax."""
    if not isinstance(expression, tuple):
        return str(expression)
    name, *parts = expression
    if name not in _PRECEDENCE:
        return f"{name}({', '.join(map(render_expression, parts))})"
    first, *others = parts
    operands = (_render_right_operand(name, each) for each in others)
    return f" {name} ".join([_render_operand(first, _PRECEDENCE[name]), *operands])


_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}


def _render_operand(part: Expression, precedence: int) -> str:
    """Render a part, in brackets if it binds less tightly than the operation."""
    weaker = isinstance(part, tuple) and _PRECEDENCE.get(part[0], precedence) < precedence
    return f"({render_expression(part)})" if weaker else render_expression(part)


def _render_right_operand(name: str, part: Expression) -> str:
    """Render a right operand; only sums in sums and products in products need no brackets.

    A product that begins with a division does: `a * (b // c * d)` is not `a * b // c * d`.
    """
    is_associative = isinstance(part, tuple) and part[0] == name and name in "+*"
    first = part
    while is_associative and name == "*" and isinstance(first, tuple):
        is_associative = first[0] not in ("//", "%")
        first = first[1] if first[0] == "*" else ""
    return _render_operand(part, _PRECEDENCE[name] + (not is_associative))
