"""Operations over many lanes at once: reductions, scans, histograms, products, atomics.

A reduction is a tree, halves onto halves, as a GPU's is: for floats the order is part of the
answer's last bits. Sums of integers are done in 64 bits and narrowed, so that only a sum that does
not fit is a wrap, and not a step on the way to it.
"""

from __future__ import annotations

from math import prod

from harness.kernels import flow
from harness.kernels.flow import terminator
from harness.kernels.graph import Kind, Operation, Region, Value
from harness.native import formats
from harness.native.emitting import Emitter
from harness.native.formats import EIGHTS, Refused, llvm_type, name_of, stored_type
from harness.native.layout import Context, Unanswered
from harness.native.text import Function


def _sides(kind: Kind, axis: int) -> tuple[int, int, int]:
    return prod(kind.shape[:axis]), kind.shape[axis], prod(kind.shape[axis + 1 :])


def _combined(own: Emitter, region: Region, given: list[str]) -> list[str]:
    """The region's results for one pair of lanes."""
    for argument, value in zip(region.block.arguments, given, strict=True):
        own.scalars[argument] = value
    for operation in region.block.operations[:-1]:
        own.operation(operation)
    return [own.scalars[value] for value in terminator(region).operands]


def _lanes_of(own: Emitter, operation: Operation, wide: bool) -> list[tuple[str, str]]:
    """Copies of the operands to work on: where they lie, and the type of an element."""
    made = []
    own.held(*operation.operands)
    for operand in operation.operands:
        element = "i64" if wide else operand.kind.element
        room = own.room(operand.kind.lanes * formats.size_of(element))
        base = own.address(room)
        with own.code.loop(operand.kind.lanes) as index:
            value, _ = own.lane(operand, index, {})
            if wide:
                value = own.code.let(f"sext {llvm_type(operand.kind.element)} {value} to i64")
            own.store_lane(value, base, element, index)
        made.append((base, element))
    return made


def reduce(own: Emitter, operation: Operation) -> None:
    code = own.code
    wide = operation.result in own.addressing and flow.is_sum(operation)
    outer, count, inner = _sides(operation.operands[0].kind, operation.number("axis"))
    rooms = _lanes_of(own, operation, wide)
    _halved(own, operation, rooms, (outer, count, inner), wide)
    twins = _folded_twins(own, operation, outer, count, inner)
    for result, (room, element) in zip(operation.results, rooms, strict=True):
        target = own.room_for(result.kind)
        twin_room = own.room(4 * max(1, result.kind.lanes)) if result in own.addressing else None
        base = own.address(target)
        twin_base = own.address(twin_room) if twin_room else None
        has_twin = wide or twins is not None
        with code.loop(outer) as row, code.loop(inner) as column:
            at = code.let(f"add i64 {code.let(f'mul i64 {row}, {count * inner}')}, {column}")
            to = code.let(f"add i64 {code.let(f'mul i64 {row}, {inner}')}, {column}")
            value = own.load_lane(room, element, at)
            twin = None if twins is None else own.load_lane(twins, "i32", at)
            if wide:
                value, twin = _narrow_sum(own, operation, result, value, twin)
            own.store_lane(value, base, result.kind.element, to)
            if twin_base is not None and twin is not None:
                own.store_lane(twin, twin_base, "i32", to)
        own.made(result, target)
        if twin_room is not None and has_twin:
            own.wraps.made(result, twin_room)


def _halved(
    own: Emitter,
    operation: Operation,
    rooms: list[tuple[str, str]],
    sides: tuple[int, int, int],
    wide: bool,
) -> None:
    code = own.code
    outer, count, inner = sides
    if count == 1:
        return
    half = code.slot("i64", str(count // 2))
    head, end = code.name("half"), code.name("whole")
    code.jump(head)
    code.start(head)
    now = code.load("i64", half)
    width = code.let(f"mul i64 {now}, {inner}")
    with code.loop(outer) as row:
        start = code.let(f"mul i64 {row}, {count * inner}")
        with code.loop(width) as column:
            left = code.let(f"add i64 {start}, {column}")
            right = code.let(f"add i64 {left}, {width}")
            given = [own.load_lane(room, kind, at) for at in (left, right) for room, kind in rooms]
            if wide:
                results = [code.let(f"add i64 {given[0]}, {given[1]}")]
            else:
                results = _combined(own, operation.regions[0], given)
            for value, (room, kind) in zip(results, rooms, strict=True):
                own.store_lane(value, room, kind, left)
    following = code.let(f"lshr i64 {now}, 1")
    code.store("i64", following, half)
    code.do(f"br i1 {code.let(f'icmp eq i64 {following}, 0')}, label %{end}, label %{head}")
    code.start(end)


def _folded_twins(
    own: Emitter, operation: Operation, outer: int, count: int, inner: int
) -> str | None:
    """A wrap in any lane that was folded; at the first place of each row."""
    given = [own.wraps.buffers[one] for one in operation.operands if one in own.wraps.buffers]
    if not given or not any(result in own.addressing for result in operation.results):
        return None
    code = own.code
    room = own.address(own.room(4 * outer * count * inner))
    sources = [own.address(one) for one in given]
    with code.loop(outer) as row, code.loop(inner) as column:
        start = code.let(f"add i64 {code.let(f'mul i64 {row}, {count * inner}')}, {column}")
        own.store_lane("0", room, "i32", start)
        with code.loop(count) as step:
            at = code.let(f"add i64 {start}, {code.let(f'mul i64 {step}, {inner}')}")
            twins = [own.load_lane(room, "i32", start)]
            twins += [own.load_lane(source, "i32", at) for source in sources]
            own.store_lane(own.wraps.united(twins) or "0", room, "i32", start)
    return room


def _narrow_sum(
    own: Emitter, operation: Operation, result: Value, value: str, twin: str | None
) -> tuple[str, str]:
    code = own.code
    kind = llvm_type(result.kind.element)
    signed = own.addressing.signed[result]
    narrow = code.let(f"trunc i64 {value} to {kind}")
    back = code.let(f"{'sext' if signed else 'zext'} {kind} {narrow} to i64")
    site = own.site("sum", operation, result.kind.element if signed else f"u{result.kind.element}")
    wrapped = code.let(f"icmp ne i64 {back}, {value}")
    pair = (value, "i64"), ("0", "i64"), (narrow, kind)
    return narrow, own.wraps.remembered(site, wrapped, signed, *pair, twin)


def scan(own: Emitter, operation: Operation) -> None:
    code = own.code
    wide = operation.result in own.addressing and flow.is_sum(operation)
    outer, count, inner = _sides(operation.operands[0].kind, operation.number("axis"))
    rooms = _lanes_of(own, operation, wide)
    if count > 1:
        _accumulated(own, operation, rooms, (outer, count, inner), wide)
    for result, (room, element) in zip(operation.results, rooms, strict=True):
        if not wide:
            own.buffers[result] = own.kept(room)
            continue
        target, twins = own.room_for(result.kind), own.room(4 * result.kind.lanes)
        base, twin_base = own.address(target), own.address(twins)
        with code.loop(result.kind.lanes) as index:
            value = own.load_lane(room, element, index)
            value, twin = _narrow_sum(own, operation, result, value, None)
            own.store_lane(value, base, result.kind.element, index)
            own.store_lane(twin, twin_base, "i32", index)
        own.made(result, target)
        own.wraps.made(result, twins)


def _accumulated(
    own: Emitter,
    operation: Operation,
    rooms: list[tuple[str, str]],
    sides: tuple[int, int, int],
    wide: bool,
) -> None:
    """Each lane with all that come before it, one after the other."""
    code = own.code
    outer, count, inner = sides
    backwards = operation.flag("reverse")
    with code.loop(outer) as row, code.loop(inner) as column, code.loop(count - 1) as step:
        start = code.let(f"add i64 {code.let(f'mul i64 {row}, {count * inner}')}, {column}")
        if backwards:
            step = code.let(f"sub i64 {count - 2}, {step}")
        low = code.let(f"add i64 {start}, {code.let(f'mul i64 {step}, {inner}')}")
        high = code.let(f"add i64 {low}, {inner}")
        before, at = (high, low) if backwards else (low, high)
        given = [own.load_lane(room, kind, where) for where in (before, at) for room, kind in rooms]
        if wide:
            results = [code.let(f"add i64 {given[0]}, {given[1]}")]
        else:
            results = _combined(own, operation.regions[0], given)
        for value, (room, kind) in zip(results, rooms, strict=True):
            own.store_lane(value, room, kind, at)


def histogram(own: Emitter, operation: Operation) -> None:
    """How many lanes hold each number; what counts a number that has no bin, nobody says."""
    code, result = own.code, operation.result
    values = operation.operands[0]
    mask = operation.operands[1] if len(operation.operands) > 1 else None
    own.held(*operation.operands)
    kind, element = llvm_type(values.kind.element), result.kind.element
    room = own.room_for(result.kind)
    base = own.address(room)
    with code.loop(result.kind.lanes) as index:
        own.store_lane("0", base, element, index)
    with code.loop(values.kind.lanes) as index:
        on = "true" if mask is None else own.lane(mask, index, {})[0]
        with code.when(on):
            value, _ = own.lane(values, index, {})
            number = value if kind == "i64" else code.let(f"sext {kind} {value} to i64")
            known = code.let(f"icmp ult i64 {number}, {result.kind.lanes}")
            with code.when(code.let(f"xor i1 {known}, true")):
                answer = str(int(Unanswered.HISTOGRAM))
                code.store("i64", answer, code.at("%context", "i64", Context.REFUSED))
            with code.when(known):
                counted = own.load_lane(base, element, number)
                more = code.let(f"add {llvm_type(element)} {counted}, 1")
                own.store_lane(more, base, element, number)
    own.made(result, room)


# Products

_IEEE = 2  # of Triton's input precisions


def dot(own: Emitter, operation: Operation) -> None:
    """In float32, or float64, products exact, summed in the order of the inner axis."""
    code = own.code
    a, b, c = operation.operands
    kinds = {a.kind.element, b.kind.element}
    whole, double = kinds == {"i8"}, kinds | {c.kind.element} == {"f64"}
    if "f32" in kinds and operation.number("inputPrecision") != _IEEE and not own.exact:
        raise Refused("tl.dot of float32 in tf32: only input_precision='ieee' is exact")
    known = {"f16", "bf16", "f32", *EIGHTS}
    if not (whole or double) and (kinds - known or c.kind.element not in ("f32", "f16")):
        names = sorted(name_of(kind) for kind in kinds)
        raise Refused(f"tl.dot of {names} into {name_of(c.kind.element)}")
    element = "i32" if whole else "f64" if double else "f32"
    *batch, rows, columns = c.kind.shape
    depth = a.kind.shape[-1]
    own.held(a, b, c)
    left, right, total = (_widened(own, value, element) for value in (a, b, c))
    kind = llvm_type(element)
    with code.loop(prod(batch)) as one, code.loop(rows) as row, code.loop(depth) as step:
        line = code.let(f"add i64 {code.let(f'mul i64 {one}, {rows}')}, {row}")
        at = code.let(f"add i64 {code.let(f'mul i64 {line}, {depth}')}, {step}")
        factor = own.load_lane(left, element, at)
        across = code.let(f"add i64 {code.let(f'mul i64 {one}, {depth}')}, {step}")
        across = code.let(f"mul i64 {across}, {columns}")
        target = code.let(f"mul i64 {line}, {columns}")
        with code.loop(columns) as column:
            other = own.load_lane(right, element, code.let(f"add i64 {across}, {column}"))
            place = code.let(f"add i64 {target}, {column}")
            before = own.load_lane(total, element, place)
            if whole:
                now = code.let(f"add i32 {before}, {code.let(f'mul i32 {factor}, {other}')}")
            else:
                now = code.let(
                    f"call {kind} @llvm.fma.{element}"
                    f"({kind} {factor}, {kind} {other}, {kind} {before})"
                )
            own.store_lane(now, total, element, place)
    result = operation.result
    if c.kind.element == element:
        own.buffers[result] = own.kept(total)
        return
    room = own.room_for(result.kind)
    base = own.address(room)
    with code.loop(result.kind.lanes) as index:
        value = own.load_lane(total, element, index)
        narrow = formats.narrowed(code, value, kind, result.kind.element)
        own.store_lane(narrow, base, result.kind.element, index)
    own.made(result, room)


def _widened(own: Emitter, value: Value, element: str) -> str:
    code = own.code
    base = own.address(own.room(value.kind.lanes * formats.size_of(element)))
    with code.loop(value.kind.lanes) as index:
        lane, _ = own.lane(value, index, {})
        if element == "f32":
            lane, kind = formats.widened(code, lane, value.kind.element)
            lane = formats.narrowed(code, lane, kind, "f32")
        elif value.kind.element != element:
            lane = code.let(f"sext {llvm_type(value.kind.element)} {lane} to i32")
        own.store_lane(lane, base, element, index)
    return base


# Atomics

_RULES = {
    1: "and", 2: "or", 3: "xor", 4: "add", 5: "fadd",
    6: "smax", 7: "smin", 8: "umax", 9: "umin", 10: "exchange",
}  # fmt: skip


def atomic(own: Emitter, operation: Operation) -> None:
    """Lane after lane; programs run one after the other, so nothing can come between."""
    code = own.code
    compares = operation.name == "tt.atomic_cas"
    operands = operation.operands
    pointer, value = operands[0], operands[-1] if compares else operands[1]
    mask = None if compares or len(operands) < 3 else operands[2]
    own.held(*operands)
    element, result = pointer.kind.pointee, operation.result
    addresses = own.access("update", operation, mask, "null")
    stored = stored_type(element)
    room = own.room_for(result.kind)
    base = own.address(room)
    with code.loop(max(1, pointer.kind.lanes)) as index:
        own.store_lane(_nothing(element), base, element, index)
        on = "true" if mask is None else own.lane(mask, index, {})[0]
        with code.when(on):
            place = code.pointer(code.load("i64", code.at(addresses, "i64", index)))
            before = code.load(stored, place)
            given, _ = own.lane(value, index, {})
            if compares:
                expected, _ = own.lane(operands[1], index, {})
                now = _exchanged(code, element, before, expected, given)
            else:
                now = _updated(code, operation, element, before, given)
            code.store(stored, now, place)
            code.store(stored, before, code.at(base, stored, index))
    own.made(result, room)


def _nothing(element: str) -> str:
    return "0.0" if llvm_type(element) in ("half", "float", "double") else "0"


def _exchanged(code: Function, element: str, before: str, expected: str, given: str) -> str:
    kind = llvm_type(element)
    if kind[0] == "i":
        same = code.let(f"icmp eq {kind} {before}, {expected}")
    else:
        bits = f"i{8 * formats.size_of(element)}"
        pair = [code.let(f"bitcast {kind} {one} to {bits}") for one in (before, expected)]
        same = code.let(f"icmp eq {bits} {pair[0]}, {pair[1]}")
    return code.let(f"select i1 {same}, {kind} {given}, {kind} {before}")


def _updated(code: Function, operation: Operation, element: str, before: str, given: str) -> str:
    rule = _RULES.get(operation.number("atomic_rmw_op"))
    kind = llvm_type(element)
    if rule is None or element in EIGHTS or element == "i1":
        raise Refused(f"an atomic on {name_of(element)}")
    if rule == "exchange":
        return given
    if rule == "fadd":
        pair = [formats.widened(code, one, element) for one in (before, given)]
        wide = pair[0][1]
        total = code.let(f"fadd {wide} {pair[0][0]}, {pair[1][0]}")
        return formats.narrowed(code, total, wide, element)
    if rule in ("and", "or", "xor", "add"):
        return code.let(f"{rule} {kind} {before}, {given}")
    return code.let(f"call {kind} @llvm.{rule}.{kind}({kind} {before}, {kind} {given})")
