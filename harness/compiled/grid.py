"""Which program this is, of how many: computed at the kernel's beginning, once."""

from __future__ import annotations

from harness.compiled.building import Builder
from harness.kernels.graph import Kind, Operation, Value

_WIDE = Kind("i64")
_SIDE = 16  # bits of a grid's second side, and of its third


class Grid:
    def __init__(self, code: Builder, entry: list[Operation]) -> None:
        self._code, self._entry = code, entry
        self._number: Value | None = None
        self._packed: Value | None = None

    @property
    def number(self) -> Value:
        """The last side first, as `itertools.product` counts."""
        code = self._code
        if self._number is None:
            with code.at(self._entry):
                number, *others = (self._side("tt.get_program_id", axis) for axis in range(3))
                for axis, here in enumerate(others, 1):
                    side = self._side("tt.get_num_programs", axis)
                    number = code.binary("addi", code.binary("muli", number, side), here)
            self._number = number
        return self._number

    @property
    def packed(self) -> Value:
        """All three sides in one number."""
        code = self._code
        if self._packed is None:
            with code.at(self._entry):
                sides, *others = (self._side("tt.get_num_programs", axis) for axis in range(3))
                for side in others:
                    sides = code.binary("shli", sides, code.constant(_SIDE, _WIDE))
                    sides = code.binary("ori", sides, side)
            self._packed = sides
        return self._packed

    def _side(self, name: str, axis: int) -> Value:
        return self._code.extended(
            self._code.emit(name, (), Kind("i32"), axis=f"{axis} : i32"), "i64", signed=True
        )


def unpacked(sides: int) -> tuple[int, int, int]:
    most = (1 << _SIDE) - 1
    return sides >> (2 * _SIDE), sides >> _SIDE & most, sides & most
