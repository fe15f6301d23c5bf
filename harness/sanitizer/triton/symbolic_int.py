"""An integer that records the conditions under which its value is used.

It stands for a constant while Triton's front end traces a kernel. Arithmetic returns another
symbolic int; a comparison returns that of the traced value and is recorded; any other use fixes the
value.
Example: BLOCK is traced with 8. `BLOCK * 2` is `(v[3] * (2))`; `if BLOCK > 4` records
`v[3] > (4)`: True, so the IR serves all constants above 4; `int(BLOCK)` records `v[3] == 8`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

_BINARY_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "//",
    "mod": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_CONCRETIZING_METHODS = (
    "index int float complex hash str abs round trunc floor ceil",
    "truediv rtruediv pow rpow divmod rdivmod",
)


class SymbolicInt:
    """An integer: `expression` computes it from a call's constants; `conditions` are recorded."""

    __slots__ = ("conditions", "expression", "value")
    __class__ = property(lambda self: int)

    def __init__(self, expression: str, value: int, conditions: dict[str, bool]) -> None:
        self.expression, self.value, self.conditions = expression, value, conditions

    def concretize(self) -> int:
        """Return the value, and record that the trace depends on it."""
        self.conditions[f"{self.expression} == {self.value}"] = True
        return self.value

    def derive(self, expression: str, value: int) -> SymbolicInt:
        return SymbolicInt(expression, value, self.conditions)

    def record_condition(self, condition: str, answer: bool) -> bool:
        self.conditions[condition] = answer
        return answer

    def __bool__(self) -> bool:
        return self.record_condition(f"{self.expression} != 0", self.value != 0)

    def __neg__(self) -> SymbolicInt:
        return self.derive(f"(-{self.expression})", -self.value)

    def __invert__(self) -> SymbolicInt:
        return self.derive(f"(~{self.expression})", ~self.value)

    def __pos__(self) -> SymbolicInt:
        return self

    def __repr__(self) -> str:
        return self.expression

    def __format__(self, form: str) -> str:
        return format(self.concretize(), form)

    def __getattr__(self, name: str) -> Any:
        getattr(int, name)  # an AttributeError, if int has none
        return getattr(self.concretize(), name)


def _to_operand(other: Any) -> tuple[str, int] | None:
    if type(other) is SymbolicInt:
        return other.expression, other.value
    return (f"({int(other)})", int(other)) if type(other) in (int, bool) else None


def _make_binary_operator(
    name: str, symbol: str, is_reflected: bool
) -> Callable[[SymbolicInt, Any], Any]:
    combine = getattr(operator, f"__{name}__")
    int_method = f"__{'r' if is_reflected else ''}{name}__"

    def derive_result(self: SymbolicInt, other: Any) -> Any:
        number = _to_operand(other)
        if number is None:
            return getattr(self.concretize(), int_method)(other)
        sides = (self.expression, self.value), number
        (left, left_value), (right, right_value) = sides[::-1] if is_reflected else sides
        return self.derive(f"({left} {symbol} {right})", combine(left_value, right_value))

    return derive_result


def _make_comparison(name: str, symbol: str) -> Callable[[SymbolicInt, Any], Any]:
    compare = getattr(operator, name)

    def answer_comparison(self: SymbolicInt, other: Any) -> Any:
        number = _to_operand(other)
        if number is None:
            return getattr(self.concretize(), f"__{name}__")(other)
        return self.record_condition(
            f"{self.expression} {symbol} {number[0]}", compare(self.value, number[1])
        )

    return answer_comparison


def _make_concretizing_method(name: str) -> Callable[..., Any]:
    return lambda self, *others: getattr(self.concretize(), name)(*others)


for _name, _sign in _BINARY_OPERATORS.items():
    setattr(SymbolicInt, f"__{_name}__", _make_binary_operator(_name, _sign, False))
    setattr(SymbolicInt, f"__r{_name}__", _make_binary_operator(_name, _sign, True))
for _name, _sign in _COMPARISONS.items():
    setattr(SymbolicInt, f"__{_name}__", _make_comparison(_name, _sign))
for _name in " ".join(_CONCRETIZING_METHODS).split():
    setattr(SymbolicInt, f"__{_name}__", _make_concretizing_method(f"__{_name}__"))
