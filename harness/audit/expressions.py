"""Numbers of the host as expressions over the words of a caller: sums, roundings, comparisons."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import Any

# A number, the words of a caller, or an operation on expressions.
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
UNKNOWN = "unknown"  # a test that nothing is known of but the words that it asks for
_ROWS = re.compile(r"(\w+)\.shape\[0\] \* \1\.shape\[1\]$")
_ROW = re.compile(r"(\w+)\.shape\[-?[1-9]\]( \* \1\.shape\[-?[1-9]\])+$")


def evaluated(expression: Expression, value_of: Callable[[str], int]) -> int:
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str) or _are_rows(expression):
        return value_of(words(expression))
    name, *parts = expression
    return OPERATIONS[name](*(evaluated(part, value_of) for part in parts))


def holds(test: Expression, value_of: Callable[[str], int]) -> bool | None:
    """Whether a test holds; None where nothing is known of it."""
    if not isinstance(test, tuple):
        return bool(evaluated(test, value_of))
    name, *parts = test
    if name == UNKNOWN:
        return None
    if name in COMPARISONS:
        return COMPARISONS[name](*(evaluated(part, value_of) for part in parts))
    if name == "not":
        inner = holds(parts[0], value_of)
        return None if inner is None else not inner
    if name in ("and", "or"):
        said = [holds(part, value_of) for part in parts]
        decisive = name == "or"
        return decisive if decisive in said else None if None in said else not decisive
    return bool(evaluated(test, value_of))


@cache
def _are_rows(expression: tuple[Any, ...]) -> bool:
    """Sides of one tensor, multiplied: how many rows it has, or how long they are."""
    text = words(expression)
    return _ROWS.match(text) is not None or _ROW.match(text) is not None


def symbols(expression: Expression) -> Iterator[str]:
    if isinstance(expression, str) or (isinstance(expression, tuple) and _are_rows(expression)):
        yield words(expression)
    elif isinstance(expression, tuple):
        for part in expression[1:]:
            yield from symbols(part)


@cache
def several(expression: Expression) -> bool:
    """Made of more than one word: what the whole is called says nothing of each."""
    return len(set(symbols(expression))) > 1


def single(expression: Expression) -> Iterator[str]:
    """Each word by itself, whatever it is multiplied by."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, tuple):
        for part in expression[1:]:
            yield from single(part)


def words(expression: Expression) -> str:
    """As the caller would write it."""
    if not isinstance(expression, tuple):
        return str(expression)
    name, *parts = expression
    if name not in _BINDS:
        return f"{name}({', '.join(map(words, parts))})"
    first, *others = parts
    return f" {name} ".join(
        [_bracketed(first, _BINDS[name]), *(_behind(name, one) for one in others)]
    )


_BINDS = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}


def _bracketed(part: Expression, binds: int) -> str:
    """A part of an operation that binds so tightly."""
    weaker = isinstance(part, tuple) and _BINDS.get(part[0], binds) < binds
    return f"({words(part)})" if weaker else words(part)


def _behind(name: str, part: Expression) -> str:
    """What stands behind an operator: there brackets may go only where the order is no matter."""
    same = isinstance(part, tuple) and part[0] == name and name in "+*"
    return _bracketed(part, _BINDS[name] + (not same))
