"""An integer that writes down what is asked of it.

Nothing learns its value but by asking: it is no `int`, and only says that it is one.
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
    """`text` is how it comes about from a call's constants, `asked` are the questions so far."""

    __slots__ = ("conditions", "expression", "value")
    __class__ = property(lambda self: int)

    def __init__(self, expression: str, value: int, conditions: dict[str, bool]) -> None:
        self.expression, self.value, self.conditions = expression, value, conditions

    def concretize(self) -> int:
        """The number itself, which is then no other one."""
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
        getattr(int, name)  # what no integer has is not asked of this one
        return getattr(self.concretize(), name)


def _to_operand(other: Any) -> tuple[str, int] | None:
    if type(other) is SymbolicInt:
        return other.expression, other.value
    return (f"({int(other)})", int(other)) if type(other) in (int, bool) else None


def _make_binary_operator(
    name: str, symbol: str, backwards: bool
) -> Callable[[SymbolicInt, Any], Any]:
    combine = getattr(operator, f"__{name}__")
    of_an_int = f"__{'r' if backwards else ''}{name}__"

    def combined(self: SymbolicInt, other: Any) -> Any:
        number = _to_operand(other)
        if number is None:
            return getattr(self.concretize(), of_an_int)(other)
        sides = (
            (number, (self.expression, self.value))
            if backwards
            else ((self.expression, self.value), number)
        )
        (left, one), (right, two) = sides
        return self.derive(f"({left} {symbol} {right})", combine(one, two))

    return combined


def _make_comparison(name: str, symbol: str) -> Callable[[SymbolicInt, Any], Any]:
    compare = getattr(operator, name)

    def compared(self: SymbolicInt, other: Any) -> Any:
        number = _to_operand(other)
        if number is None:
            return getattr(self.concretize(), f"__{name}__")(other)
        return self.record_condition(
            f"{self.expression} {symbol} {number[0]}", compare(self.value, number[1])
        )

    return compared


def _make_concretizing_method(name: str) -> Callable[..., Any]:
    return lambda self, *others: getattr(self.concretize(), name)(*others)


for _name, _sign in _BINARY_OPERATORS.items():
    setattr(SymbolicInt, f"__{_name}__", _make_binary_operator(_name, _sign, False))
    setattr(SymbolicInt, f"__r{_name}__", _make_binary_operator(_name, _sign, True))
for _name, _sign in _COMPARISONS.items():
    setattr(SymbolicInt, f"__{_name}__", _make_comparison(_name, _sign))
for _name in " ".join(_CONCRETIZING_METHODS).split():
    setattr(SymbolicInt, f"__{_name}__", _make_concretizing_method(f"__{_name}__"))
