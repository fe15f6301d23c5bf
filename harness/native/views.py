"""Operations that compute nothing: where a lane of the result lies in the operands.

Lanes are counted in row-major order, so a reshape or a new axis leaves each where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from harness.kernels.graph import Operation, Value
from harness.native.emitting import Known, Lane, Values
from harness.native.formats import Refused, literal, llvm_type, stored_type

View = Callable[[Values, Operation, Value, str, Known], Lane]


def _splat(own: Values, operation: Operation, value: Value, index: str, known: Known) -> Lane:
    return own.lane(operation.operands[0], "0", known)


def _same(own: Values, operation: Operation, value: Value, index: str, known: Known) -> Lane:
    return own.lane(operation.operands[0], index, known)


def _range(own: Values, operation: Operation, value: Value, index: str, known: Known) -> Lane:
    kind = llvm_type(value.kind.element)
    place = index if kind == "i64" else own.code.let(f"trunc i64 {index} to {kind}")
    start = operation.number("start")
    return (own.code.let(f"add {kind} {place}, {start}") if start else place), None


def _constant(own: Values, operation: Operation, value: Value, index: str, known: Known) -> Lane:
    text = operation.attributes["value"]
    inner = text[text.index("<") + 1 : text.index("> : tensor")].strip()
    element = value.kind.element
    if inner.startswith('"'):
        raise Refused(f"a constant tensor of {value.kind}")
    if not inner.startswith("["):
        return literal(inner, element), None
    numbers = inner.replace("[", " ").replace("]", " ").split(",")
    stored = stored_type(element)
    listed = ", ".join(f"{stored} {literal(one, element)}" for one in numbers)
    name = f"@listed{len(own.globals)}"
    own.globals.append(f"{name} = internal constant [{len(numbers)} x {stored}] [{listed}]")
    return own.load_lane(own.code.at(name, stored, 0), element, index), None


def _index(own: Values, parts: list[tuple[str, int]]) -> str:
    """A sum of coordinates, each times its stride."""
    total = "0"
    for coordinate, stride in parts:
        term = coordinate
        if stride != 1 and coordinate != "0":
            term = own.code.let(f"mul i64 {coordinate}, {stride}")
        total = term if total == "0" else own.code.let(f"add i64 {total}, {term}")
    return total


def coordinate(own: Values, index: str, shape: tuple[int, ...], axis: int) -> str:
    below = prod(shape[axis + 1 :])
    if shape[axis] == 1:
        return "0"
    over = index if below == 1 else own.code.let(f"udiv i64 {index}, {below}")
    return over if axis == 0 else own.code.let(f"urem i64 {over}, {shape[axis]}")


def _broadcast(own: Values, operation: Operation, value: Value, index: str, known: Known) -> Lane:
    source, shape = operation.operands[0], value.kind.shape
    inner = source.kind.shape
    parts = [
        (coordinate(own, index, shape, axis), prod(inner[axis + 1 :]))
        for axis in range(len(shape))
        if inner[axis] != 1
    ]
    return own.lane(source, _index(own, parts), known)


def _transposed(own: Values, operation: Operation, value: Value, index: str, known: Known) -> Lane:
    source, shape = operation.operands[0], value.kind.shape
    inner = source.kind.shape
    parts = [
        (coordinate(own, index, shape, axis), prod(inner[place + 1 :]))
        for axis, place in enumerate(operation.numbers("order"))
    ]
    return own.lane(source, _index(own, parts), known)


def _either(
    own: Values, operation: Operation, second: str, places: list[str], known: Known
) -> Lane:
    pairs = [
        own.lane(operand, place, known)
        for operand, place in zip(operation.operands, places, strict=True)
    ]
    kind = llvm_type(operation.result.kind.element)
    code = own.code
    value = code.let(f"select i1 {second}, {kind} {pairs[1][0]}, {kind} {pairs[0][0]}")
    if pairs[0][1] is None and pairs[1][1] is None:
        return value, None
    twins = [twin or "0" for _, twin in pairs]
    return value, code.let(f"select i1 {second}, i32 {twins[1]}, i32 {twins[0]}")


def _joined(own: Values, operation: Operation, value: Value, index: str, known: Known) -> Lane:
    second = own.code.let(f"trunc i64 {index} to i1")
    place = own.code.let(f"lshr i64 {index}, 1")
    return _either(own, operation, second, [place, place], known)


def _split(own: Values, operation: Operation, value: Value, index: str, known: Known) -> Lane:
    place = own.code.let(f"shl i64 {index}, 1")
    if value is operation.results[1]:
        place = own.code.let(f"or i64 {place}, 1")
    return own.lane(operation.operands[0], place, known)


def _together(own: Values, operation: Operation, value: Value, index: str, known: Known) -> Lane:
    first = operation.operands[0].kind.lanes
    second = own.code.let(f"icmp uge i64 {index}, {first}")
    place = own.code.let(f"urem i64 {index}, {first}")
    return _either(own, operation, second, [place, place], known)


def _gathered(own: Values, operation: Operation, value: Value, index: str, known: Known) -> Lane:
    source, indices = operation.operands
    axis, inner = operation.number("axis"), source.kind.shape
    at, _ = own.lane(indices, index, known)
    kind = llvm_type(indices.kind.element)
    if kind != "i64":
        at = own.code.let(f"zext {kind} {at} to i64")
    at = own.code.let(f"urem i64 {at}, {inner[axis]}")
    parts = [
        (
            at if place == axis else coordinate(own, index, value.kind.shape, place),
            prod(inner[place + 1 :]),
        )
        for place in range(len(inner))
    ]
    return own.lane(source, _index(own, parts), known)


TABLE: dict[str, View] = {
    "arith.constant": _constant,
    "tt.splat": _splat,
    "tt.make_range": _range,
    "tt.expand_dims": _same,
    "tt.reshape": _same,
    "tt.broadcast": _broadcast,
    "tt.trans": _transposed,
    "tt.join": _joined,
    "tt.split": _split,
    "tt.cat": _together,
    "tt.gather": _gathered,
}
# Their lanes are where they were: what they are made of can be computed in the same loop.
IN_PLACE = frozenset({"tt.splat", "tt.expand_dims", "tt.reshape"})
