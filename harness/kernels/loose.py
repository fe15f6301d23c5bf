"""An integer that writes down what is asked of it.

Nothing learns its value but by asking: it is no `int`, and only says that it is one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

_COMBINED = {
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
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_TAKEN = (
    "index int float complex hash str abs round trunc floor ceil",
    "truediv rtruediv pow rpow divmod rdivmod",
)


class Loose:
    """`text` is how it comes about from a call's constants, `asked` are the questions so far."""

    __slots__ = ("asked", "text", "value")
    __class__ = property(lambda self: int)

    def __init__(self, text: str, value: int, asked: dict[str, bool]) -> None:
        self.text, self.value, self.asked = text, value, asked

    def taken(self) -> int:
        """The number itself, which is then no other one."""
        self.asked[f"{self.text} == {self.value}"] = True
        return self.value

    def made(self, text: str, value: int) -> Loose:
        return Loose(text, value, self.asked)

    def answered(self, text: str, answer: bool) -> bool:
        self.asked[text] = answer
        return answer

    def __bool__(self) -> bool:
        return self.answered(f"{self.text} != 0", self.value != 0)

    def __neg__(self) -> Loose:
        return self.made(f"(-{self.text})", -self.value)

    def __invert__(self) -> Loose:
        return self.made(f"(~{self.text})", ~self.value)

    def __pos__(self) -> Loose:
        return self

    def __repr__(self) -> str:
        return self.text

    def __format__(self, form: str) -> str:
        return format(self.taken(), form)

    def __getattr__(self, name: str) -> Any:
        getattr(int, name)  # what no integer has is not asked of this one
        return getattr(self.taken(), name)


def _number(other: Any) -> tuple[str, int] | None:
    if type(other) is Loose:
        return other.text, other.value
    return (f"({int(other)})", int(other)) if type(other) in (int, bool) else None


def _combining(name: str, sign: str, backwards: bool) -> Callable[[Loose, Any], Any]:
    combine = getattr(operator, f"__{name}__")
    of_an_int = f"__{'r' if backwards else ''}{name}__"

    def combined(self: Loose, other: Any) -> Any:
        number = _number(other)
        if number is None:
            return getattr(self.taken(), of_an_int)(other)
        sides = (
            (number, (self.text, self.value)) if backwards else ((self.text, self.value), number)
        )
        (left, one), (right, two) = sides
        return self.made(f"({left} {sign} {right})", combine(one, two))

    return combined


def _comparing(name: str, sign: str) -> Callable[[Loose, Any], Any]:
    compare = getattr(operator, name)

    def compared(self: Loose, other: Any) -> Any:
        number = _number(other)
        if number is None:
            return getattr(self.taken(), f"__{name}__")(other)
        return self.answered(f"{self.text} {sign} {number[0]}", compare(self.value, number[1]))

    return compared


def _taking(name: str) -> Callable[..., Any]:
    return lambda self, *others: getattr(self.taken(), name)(*others)


for _name, _sign in _COMBINED.items():
    setattr(Loose, f"__{_name}__", _combining(_name, _sign, False))
    setattr(Loose, f"__r{_name}__", _combining(_name, _sign, True))
for _name, _sign in _COMPARED.items():
    setattr(Loose, f"__{_name}__", _comparing(_name, _sign))
for _name in " ".join(_TAKEN).split():
    setattr(Loose, f"__{_name}__", _taking(f"__{_name}__"))
