"""Operations that compute nothing: where a lane of the result lies in the operands.

Lanes are counted in row-major order, so a reshape or a new axis leaves each where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from harness.kernels.cpu.emitter_protocols import LaneCache, LaneRegister, ValueEmitter
from harness.kernels.cpu.number_formats import (
    UnsupportedOnCpu,
    format_literal,
    llvm_storage_type,
    llvm_type,
)
from harness.kernels.ir.graph import IROperation, IRValue

ViewEmitter = Callable[[ValueEmitter, IROperation, IRValue, str, LaneCache], LaneRegister]


def _emit_splat(
    emitter: ValueEmitter, operation: IROperation, value: IRValue, index: str, lane_cache: LaneCache
) -> LaneRegister:
    return emitter.emit_lane(operation.operands[0], "0", lane_cache)


def _emit_same_lane(
    emitter: ValueEmitter, operation: IROperation, value: IRValue, index: str, lane_cache: LaneCache
) -> LaneRegister:
    return emitter.emit_lane(operation.operands[0], index, lane_cache)


def _emit_range(
    emitter: ValueEmitter, operation: IROperation, value: IRValue, index: str, lane_cache: LaneCache
) -> LaneRegister:
    kind = llvm_type(value.type.element)
    place = index if kind == "i64" else emitter.code.let(f"trunc i64 {index} to {kind}")
    start = operation.get_int("start")
    return (emitter.code.let(f"add {kind} {place}, {start}") if start else place), None


def _emit_constant(
    emitter: ValueEmitter, operation: IROperation, value: IRValue, index: str, lane_cache: LaneCache
) -> LaneRegister:
    text = operation.attributes["value"]
    inner = text[text.index("<") + 1 : text.index("> : tensor")].strip()
    element = value.type.element
    if inner.startswith('"'):
        raise UnsupportedOnCpu(f"a constant tensor of {value.type}")
    if not inner.startswith("["):
        return format_literal(inner, element), None
    numbers = inner.replace("[", " ").replace("]", " ").split(",")
    stored = llvm_storage_type(element)
    listed = ", ".join(f"{stored} {format_literal(one, element)}" for one in numbers)
    name = f"@listed{len(emitter.global_definitions)}"
    emitter.global_definitions.append(
        f"{name} = internal constant [{len(numbers)} x {stored}] [{listed}]"
    )
    return emitter.emit_lane_load(
        emitter.code.element_pointer(name, stored, 0), element, index
    ), None


def _emit_flat_index(emitter: ValueEmitter, parts: list[tuple[str, int]]) -> str:
    """A sum of coordinates, each times its stride."""
    total = "0"
    for coordinate, stride in parts:
        term = coordinate
        if stride != 1 and coordinate != "0":
            term = emitter.code.let(f"mul i64 {coordinate}, {stride}")
        total = term if total == "0" else emitter.code.let(f"add i64 {total}, {term}")
    return total


def emit_coordinate(emitter: ValueEmitter, index: str, shape: tuple[int, ...], axis: int) -> str:
    below = prod(shape[axis + 1 :])
    if shape[axis] == 1:
        return "0"
    over = index if below == 1 else emitter.code.let(f"udiv i64 {index}, {below}")
    return over if axis == 0 else emitter.code.let(f"urem i64 {over}, {shape[axis]}")


def _emit_broadcast(
    emitter: ValueEmitter, operation: IROperation, value: IRValue, index: str, lane_cache: LaneCache
) -> LaneRegister:
    source, shape = operation.operands[0], value.type.shape
    inner = source.type.shape
    parts = [
        (emit_coordinate(emitter, index, shape, axis), prod(inner[axis + 1 :]))
        for axis in range(len(shape))
        if inner[axis] != 1
    ]
    return emitter.emit_lane(source, _emit_flat_index(emitter, parts), lane_cache)


def _emit_transpose(
    emitter: ValueEmitter, operation: IROperation, value: IRValue, index: str, lane_cache: LaneCache
) -> LaneRegister:
    source, shape = operation.operands[0], value.type.shape
    inner = source.type.shape
    parts = [
        (emit_coordinate(emitter, index, shape, axis), prod(inner[place + 1 :]))
        for axis, place in enumerate(operation.get_ints("order"))
    ]
    return emitter.emit_lane(source, _emit_flat_index(emitter, parts), lane_cache)


def _emit_choice(
    emitter: ValueEmitter,
    operation: IROperation,
    second: str,
    places: list[str],
    lane_cache: LaneCache,
) -> LaneRegister:
    pairs = [
        emitter.emit_lane(operand, place, lane_cache)
        for operand, place in zip(operation.operands, places, strict=True)
    ]
    kind = llvm_type(operation.result.type.element)
    code = emitter.code
    value = code.let(f"select i1 {second}, {kind} {pairs[1][0]}, {kind} {pairs[0][0]}")
    if pairs[0][1] is None and pairs[1][1] is None:
        return value, None
    twins = [twin or "0" for _, twin in pairs]
    return value, code.let(f"select i1 {second}, i32 {twins[1]}, i32 {twins[0]}")


def _emit_join(
    emitter: ValueEmitter, operation: IROperation, value: IRValue, index: str, lane_cache: LaneCache
) -> LaneRegister:
    second = emitter.code.let(f"trunc i64 {index} to i1")
    place = emitter.code.let(f"lshr i64 {index}, 1")
    return _emit_choice(emitter, operation, second, [place, place], lane_cache)


def _emit_split(
    emitter: ValueEmitter, operation: IROperation, value: IRValue, index: str, lane_cache: LaneCache
) -> LaneRegister:
    place = emitter.code.let(f"shl i64 {index}, 1")
    if value is operation.results[1]:
        place = emitter.code.let(f"or i64 {place}, 1")
    return emitter.emit_lane(operation.operands[0], place, lane_cache)


def _emit_concatenation(
    emitter: ValueEmitter, operation: IROperation, value: IRValue, index: str, lane_cache: LaneCache
) -> LaneRegister:
    first = operation.operands[0].type.lanes
    second = emitter.code.let(f"icmp uge i64 {index}, {first}")
    place = emitter.code.let(f"urem i64 {index}, {first}")
    return _emit_choice(emitter, operation, second, [place, place], lane_cache)


def _emit_gather(
    emitter: ValueEmitter, operation: IROperation, value: IRValue, index: str, lane_cache: LaneCache
) -> LaneRegister:
    source, indices = operation.operands
    axis, inner = operation.get_int("axis"), source.type.shape
    at, _ = emitter.emit_lane(indices, index, lane_cache)
    kind = llvm_type(indices.type.element)
    if kind != "i64":
        at = emitter.code.let(f"zext {kind} {at} to i64")
    at = emitter.code.let(f"urem i64 {at}, {inner[axis]}")
    parts = [
        (
            at if place == axis else emit_coordinate(emitter, index, value.type.shape, place),
            prod(inner[place + 1 :]),
        )
        for place in range(len(inner))
    ]
    return emitter.emit_lane(source, _emit_flat_index(emitter, parts), lane_cache)


VIEW_EMITTERS: dict[str, ViewEmitter] = {
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
# Their lanes are where they were: what they are made of can be computed in the same loop.
LANE_PRESERVING = frozenset({"tt.splat", "tt.expand_dims", "tt.reshape"})
