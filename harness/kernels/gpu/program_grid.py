"""Which program this is, of how many: computed at the kernel's beginning, once."""

from __future__ import annotations

from harness.kernels.gpu.graph_builder import GraphBuilder
from harness.kernels.ir.graph import IROperation, IRValue, ValueType

_INT64 = ValueType("i64")
_AXIS_BITS = 16  # bits of a grid's second side, and of its third


class ProgramGrid:
    def __init__(self, code: GraphBuilder, entry: list[IROperation]) -> None:
        self._code, self._entry = code, entry
        self._program_number: IRValue | None = None
        self._packed_shape: IRValue | None = None

    @property
    def program_number(self) -> IRValue:
        """The last side first, as `itertools.product` counts."""
        code = self._code
        if self._program_number is None:
            with code.insert_into(self._entry):
                number, *others = (
                    self._emit_axis_value("tt.get_program_id", axis) for axis in range(3)
                )
                for axis, here in enumerate(others, 1):
                    side = self._emit_axis_value("tt.get_num_programs", axis)
                    number = code.binary("addi", code.binary("muli", number, side), here)
            self._program_number = number
        return self._program_number

    @property
    def packed_shape(self) -> IRValue:
        """All three sides in one number."""
        code = self._code
        if self._packed_shape is None:
            with code.insert_into(self._entry):
                sides, *others = (
                    self._emit_axis_value("tt.get_num_programs", axis) for axis in range(3)
                )
                for side in others:
                    sides = code.binary("shli", sides, code.constant(_AXIS_BITS, _INT64))
                    sides = code.binary("ori", sides, side)
            self._packed_shape = sides
        return self._packed_shape

    def _emit_axis_value(self, name: str, axis: int) -> IRValue:
        return self._code.extend(
            self._code.emit(name, (), ValueType("i32"), axis=f"{axis} : i32"), "i64", signed=True
        )


def unpack_grid_shape(packed_shape: int) -> tuple[int, int, int]:
    most = (1 << _AXIS_BITS) - 1
    return packed_shape >> (2 * _AXIS_BITS), packed_shape >> _AXIS_BITS & most, packed_shape & most
