"""Operations that compute nothing: each lane of the result is a lane of an operand.

Lanes are counted in row-major order, so a reshape or a new axis moves no lane. Example:
lane 5 of a 2x3 tensor is its element [1, 2]; if the tensor is the transpose of a 3x2 one, that is
the operand's element [2, 1], its lane 5, and lane 4 is the operand's lane 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from harness.sanitizer.cpu.scratch_values import LaneCache, LaneRegister, ScratchValues
from harness.sanitizer.ir.graph import IROperation, IRValue
from harness.sanitizer.llvm.number_formats import (
    UnsupportedOnCpu,
    format_literal,
    llvm_storage_type,
    llvm_type,
)
from harness.sanitizer.llvm.text import LlvmFunction


@dataclass(frozen=True, slots=True)
class ViewedLane:
    """The lane at `index` of `value`, a result of the view `operation`."""

    emitter: ScratchValues
    operation: IROperation
    value: IRValue
    index: str
    cache: LaneCache

    @property
    def code(self) -> LlvmFunction:
        return self.emitter.code

    def emit_operand(self, position: int, index: str) -> LaneRegister:
        return self.emitter.emit_lane(self.operation.operands[position], index, self.cache)

    def emit_element(self, coordinates: list[tuple[str, int]]) -> LaneRegister:
        """Emit the first operand's lane at a sum of coordinates, each times its stride."""
        lane = "0"
        for coordinate, stride in coordinates:
            term = coordinate
            if stride != 1 and coordinate != "0":
                term = self.code.let(f"mul i64 {coordinate}, {stride}")
            lane = term if lane == "0" else self.code.let(f"add i64 {lane}, {term}")
        return self.emit_operand(0, lane)

    def emit_coordinate(self, axis: int) -> str:
        """Compute the lane's index along an axis of the result."""
        shape = self.value.type.shape
        below = prod(shape[axis + 1 :])
        if shape[axis] == 1:
            return "0"
        over = self.index if below == 1 else self.code.let(f"udiv i64 {self.index}, {below}")
        return over if axis == 0 else self.code.let(f"urem i64 {over}, {shape[axis]}")


def _emit_splat(lane: ViewedLane) -> LaneRegister:
    return lane.emit_operand(0, "0")


def _emit_same_lane(lane: ViewedLane) -> LaneRegister:
    return lane.emit_operand(0, lane.index)


def _emit_range(lane: ViewedLane) -> LaneRegister:
    kind, start = llvm_type(lane.value.type.element), lane.operation.get_int("start")
    number = lane.index if kind == "i64" else lane.code.let(f"trunc i64 {lane.index} to {kind}")
    return (lane.code.let(f"add {kind} {number}, {start}") if start else number), None


def _emit_constant(lane: ViewedLane) -> LaneRegister:
    text = lane.operation.attributes["value"]
    inner = text[text.index("<") + 1 : text.index("> : tensor")].strip()
    element = lane.value.type.element
    if inner.startswith('"'):
        raise UnsupportedOnCpu(f"a constant tensor of {lane.value.type}")
    if not inner.startswith("["):
        return format_literal(inner, element), None
    numbers = inner.replace("[", " ").replace("]", " ").split(",")
    stored, definitions = llvm_storage_type(element), lane.emitter.global_definitions
    literals = ", ".join(f"{stored} {format_literal(number, element)}" for number in numbers)
    name = f"@listed{len(definitions)}"
    definitions.append(f"{name} = internal constant [{len(numbers)} x {stored}] [{literals}]")
    table = lane.code.element_pointer(name, stored, 0)
    return lane.emitter.emit_lane_load(table, element, lane.index), None


def _emit_broadcast(lane: ViewedLane) -> LaneRegister:
    inner = lane.operation.operands[0].type.shape
    axes = (axis for axis in range(len(inner)) if inner[axis] != 1)
    return lane.emit_element([(lane.emit_coordinate(x), prod(inner[x + 1 :])) for x in axes])


def _emit_transpose(lane: ViewedLane) -> LaneRegister:
    inner = lane.operation.operands[0].type.shape
    order = enumerate(lane.operation.get_ints("order"))
    return lane.emit_element([(lane.emit_coordinate(x), prod(inner[of + 1 :])) for x, of in order])


def _emit_choice(lane: ViewedLane, second: str, index: str) -> LaneRegister:
    """Emit the lane of the second operand where `second` holds, else of the first."""
    (a, a_state), (b, b_state) = (lane.emit_operand(position, index) for position in (0, 1))
    kind = llvm_type(lane.operation.result.type.element)
    value = lane.code.let(f"select i1 {second}, {kind} {b}, {kind} {a}")
    if a_state is None and b_state is None:
        return value, None
    states = f"i32 {b_state or '0'}, i32 {a_state or '0'}"
    return value, lane.code.let(f"select i1 {second}, {states}")


def _emit_join(lane: ViewedLane) -> LaneRegister:
    second = lane.code.let(f"trunc i64 {lane.index} to i1")
    return _emit_choice(lane, second, lane.code.let(f"lshr i64 {lane.index}, 1"))


def _emit_split(lane: ViewedLane) -> LaneRegister:
    index = lane.code.let(f"shl i64 {lane.index}, 1")
    if lane.value is lane.operation.results[1]:
        index = lane.code.let(f"or i64 {index}, 1")
    return lane.emit_operand(0, index)


def _emit_concatenation(lane: ViewedLane) -> LaneRegister:
    first = lane.operation.operands[0].type.lanes
    second = lane.code.let(f"icmp uge i64 {lane.index}, {first}")
    return _emit_choice(lane, second, lane.code.let(f"urem i64 {lane.index}, {first}"))


def _emit_gather(lane: ViewedLane) -> LaneRegister:
    source, indices = lane.operation.operands
    axis, inner = lane.operation.get_int("axis"), source.type.shape
    at, _ = lane.emit_operand(1, lane.index)
    kind = llvm_type(indices.type.element)
    if kind != "i64":
        at = lane.code.let(f"zext {kind} {at} to i64")
    at = lane.code.let(f"urem i64 {at}, {inner[axis]}")
    return lane.emit_element(
        [
            (at if place == axis else lane.emit_coordinate(place), prod(inner[place + 1 :]))
            for place in range(len(inner))
        ]
    )


VIEW_EMITTERS: dict[str, Callable[[ViewedLane], LaneRegister]] = {
    "arith.constant": _emit_constant,
    "tt.splat": _emit_splat,
    "tt.make_range": _emit_range,
    "tt.expand_dims": _emit_same_lane,
    "tt.reshape": _emit_same_lane,
    "tt.broadcast": _emit_broadcast,
    "tt.trans": _emit_transpose,
    "tt.join": _emit_join,
    "tt.split": _emit_split,
    "tt.cat": _emit_concatenation,
    "tt.gather": _emit_gather,
}
