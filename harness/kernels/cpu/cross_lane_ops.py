"""Operations over many lanes at once: reductions, scans, histograms, products, atomics.

A reduction is a tree, halves onto halves, as on a GPU: for floats the order decides the last bits.
Integer sums that form addresses are computed in 64 bits and narrowed at the end, so only a total
that does not fit overflows, and no step on the way. Example: 4 lanes of 2**30 in int32 sum up to
2**32; the report says "a sum of 4294967296 became 0 in int32".
"""

from __future__ import annotations

from math import prod

from harness.kernels.cpu import number_formats
from harness.kernels.cpu.abi import LaunchField, UndefinedResult
from harness.kernels.cpu.control_flow import ControlFlowLowering
from harness.kernels.cpu.llvm_text import LlvmFunction
from harness.kernels.cpu.number_formats import (
    FLOAT8_FORMATS,
    UnsupportedOnCpu,
    llvm_storage_type,
    llvm_type,
    triton_type_name,
)
from harness.kernels.ir import flow
from harness.kernels.ir.flow import get_terminator
from harness.kernels.ir.graph import IROperation, IRValue, ValueType


def _split_axes(value_type: ValueType, axis: int) -> tuple[int, int, int]:
    return prod(value_type.shape[:axis]), value_type.shape[axis], prod(value_type.shape[axis + 1 :])


def _emit_combination(
    emitter: ControlFlowLowering, operation: IROperation, operands: list[str], in_64_bits: bool
) -> list[str]:
    """Emit the reduction's region for one pair of lanes."""
    if in_64_bits:
        return [emitter.code.let(f"add i64 {operands[0]}, {operands[1]}")]
    region = operation.regions[0]
    for argument, value in zip(region.block.arguments, operands, strict=True):
        emitter.scalars[argument] = value
    for operation in region.block.operations[:-1]:
        emitter.lower_operation(operation)
    return [emitter.scalars[value] for value in get_terminator(region).operands]


def _copy_operands(
    emitter: ControlFlowLowering, operation: IROperation, in_64_bits: bool
) -> list[tuple[str, str]]:
    """Copies of the operands to work on: the address of each, and its element type."""
    copies = []
    emitter.materialize(*operation.operands)
    for operand in operation.operands:
        element = "i64" if in_64_bits else operand.type.element
        buffer = emitter.allocate_scratch(operand.type.lanes * number_formats.size_of(element))
        base = emitter.emit_buffer_address(buffer)
        with emitter.code.loop(operand.type.lanes) as index:
            value, _ = emitter.emit_lane(operand, index, {})
            if in_64_bits:
                value = emitter.code.let(f"sext {llvm_type(operand.type.element)} {value} to i64")
            emitter.emit_lane_store(value, base, element, index)
        copies.append((base, element))
    return copies


def lower_reduce(emitter: ControlFlowLowering, operation: IROperation) -> None:
    code = emitter.code
    wide = operation.result in emitter.address_integers and flow.is_integer_sum(operation)
    outer, count, inner = _split_axes(operation.operands[0].type, operation.get_int("axis"))
    buffers = _copy_operands(emitter, operation, wide)
    _emit_tree_reduction(emitter, operation, buffers, (outer, count, inner), wide)
    lane_states = _merge_lane_states(emitter, operation, outer, count, inner)
    for result, (buffer, element) in zip(operation.results, buffers, strict=True):
        target = emitter.allocate_for_type(result.type)
        state_buffer = (
            emitter.allocate_scratch(4 * max(1, result.type.lanes))
            if result in emitter.address_integers
            else None
        )
        base = emitter.emit_buffer_address(target)
        state_base = emitter.emit_buffer_address(state_buffer) if state_buffer else None
        has_state = wide or lane_states is not None
        with code.loop(outer) as row, code.loop(inner) as column:
            at = code.let(f"add i64 {code.let(f'mul i64 {row}, {count * inner}')}, {column}")
            to = code.let(f"add i64 {code.let(f'mul i64 {row}, {inner}')}, {column}")
            value = emitter.emit_lane_load(buffer, element, at)
            state = None if lane_states is None else emitter.emit_lane_load(lane_states, "i32", at)
            if wide:
                value, state = _emit_narrowed_sum(emitter, operation, result, value, state)
            emitter.emit_lane_store(value, base, result.type.element, to)
            if state_base is not None and state is not None:
                emitter.emit_lane_store(state, state_base, "i32", to)
        emitter.set_result_buffer(result, target)
        if state_buffer is not None and has_state:
            emitter.overflows.set_result_buffer(result, state_buffer)


def _emit_tree_reduction(
    emitter: ControlFlowLowering,
    operation: IROperation,
    buffers: list[tuple[str, str]],
    extents: tuple[int, int, int],
    in_64_bits: bool,
) -> None:
    code = emitter.code
    outer, count, inner = extents
    if count == 1:
        return
    half = code.alloca("i64", str(count // 2))
    head, end = code.make_name("half"), code.make_name("whole")
    code.jump(head)
    code.start_block(head)
    now = code.load("i64", half)
    width = code.let(f"mul i64 {now}, {inner}")
    with code.loop(outer) as row:
        start = code.let(f"mul i64 {row}, {count * inner}")
        with code.loop(width) as column:
            left = code.let(f"add i64 {start}, {column}")
            right = code.let(f"add i64 {left}, {width}")
            operands = [
                emitter.emit_lane_load(buffer, kind, at)
                for at in (left, right)
                for buffer, kind in buffers
            ]
            results = _emit_combination(emitter, operation, operands, in_64_bits)
            for value, (buffer, kind) in zip(results, buffers, strict=True):
                emitter.emit_lane_store(value, buffer, kind, left)
    following = code.let(f"lshr i64 {now}, 1")
    code.store("i64", following, half)
    code.emit(f"br i1 {code.let(f'icmp eq i64 {following}, 0')}, label %{end}, label %{head}")
    code.start_block(end)


def _merge_lane_states(
    emitter: ControlFlowLowering, operation: IROperation, outer: int, count: int, inner: int
) -> str | None:
    """The overflow state of each row, which is that of any lane in it, at the row's first lane."""
    operand_buffers = [
        emitter.overflows.buffers[operand]
        for operand in operation.operands
        if operand in emitter.overflows.buffers
    ]
    if not operand_buffers or not any(
        result in emitter.address_integers for result in operation.results
    ):
        return None
    code = emitter.code
    merged = emitter.emit_buffer_address(emitter.allocate_scratch(4 * outer * count * inner))
    sources = [emitter.emit_buffer_address(operand) for operand in operand_buffers]
    with code.loop(outer) as row, code.loop(inner) as column:
        start = code.let(f"add i64 {code.let(f'mul i64 {row}, {count * inner}')}, {column}")
        emitter.emit_lane_store("0", merged, "i32", start)
        with code.loop(count) as step:
            at = code.let(f"add i64 {start}, {code.let(f'mul i64 {step}, {inner}')}")
            states = [emitter.emit_lane_load(merged, "i32", start)]
            states += [emitter.emit_lane_load(source, "i32", at) for source in sources]
            emitter.emit_lane_store(
                emitter.overflows.emit_merge(states) or "0", merged, "i32", start
            )
    return merged


def _emit_narrowed_sum(
    emitter: ControlFlowLowering,
    operation: IROperation,
    result: IRValue,
    value: str,
    operand_state: str | None,
) -> tuple[str, str]:
    code = emitter.code
    kind = llvm_type(result.type.element)
    signed = emitter.address_integers.signed[result]
    narrow = code.let(f"trunc i64 {value} to {kind}")
    back = code.let(f"{'sext' if signed else 'zext'} {kind} {narrow} to i64")
    site = emitter.add_site(
        "sum", operation, result.type.element if signed else f"u{result.type.element}"
    )
    overflowed = code.let(f"icmp ne i64 {back}, {value}")
    pair = (value, "i64"), ("0", "i64"), (narrow, kind)
    return narrow, emitter.overflows.emit_overflow_record(
        site, overflowed, signed, *pair, operand_state
    )


def lower_scan(emitter: ControlFlowLowering, operation: IROperation) -> None:
    code = emitter.code
    wide = operation.result in emitter.address_integers and flow.is_integer_sum(operation)
    outer, count, inner = _split_axes(operation.operands[0].type, operation.get_int("axis"))
    buffers = _copy_operands(emitter, operation, wide)
    if count > 1:
        _emit_prefix_scan(emitter, operation, buffers, (outer, count, inner), wide)
    for result, (buffer, element) in zip(operation.results, buffers, strict=True):
        if not wide:
            emitter.buffers[result] = emitter.find_buffer(buffer)
            continue
        target, state_buffer = (
            emitter.allocate_for_type(result.type),
            emitter.allocate_scratch(4 * result.type.lanes),
        )
        base, state_base = (
            emitter.emit_buffer_address(target),
            emitter.emit_buffer_address(state_buffer),
        )
        with code.loop(result.type.lanes) as index:
            value = emitter.emit_lane_load(buffer, element, index)
            value, state = _emit_narrowed_sum(emitter, operation, result, value, None)
            emitter.emit_lane_store(value, base, result.type.element, index)
            emitter.emit_lane_store(state, state_base, "i32", index)
        emitter.set_result_buffer(result, target)
        emitter.overflows.set_result_buffer(result, state_buffer)


def _emit_prefix_scan(
    emitter: ControlFlowLowering,
    operation: IROperation,
    buffers: list[tuple[str, str]],
    extents: tuple[int, int, int],
    in_64_bits: bool,
) -> None:
    """Combine each lane with the result of the lane before it."""
    code = emitter.code
    outer, count, inner = extents
    backwards = operation.get_flag("reverse")
    with code.loop(outer) as row, code.loop(inner) as column, code.loop(count - 1) as step:
        start = code.let(f"add i64 {code.let(f'mul i64 {row}, {count * inner}')}, {column}")
        if backwards:
            step = code.let(f"sub i64 {count - 2}, {step}")
        low = code.let(f"add i64 {start}, {code.let(f'mul i64 {step}, {inner}')}")
        high = code.let(f"add i64 {low}, {inner}")
        before, at = (high, low) if backwards else (low, high)
        operands = [
            emitter.emit_lane_load(buffer, kind, where)
            for where in (before, at)
            for buffer, kind in buffers
        ]
        results = _emit_combination(emitter, operation, operands, in_64_bits)
        for value, (buffer, kind) in zip(results, buffers, strict=True):
            emitter.emit_lane_store(value, buffer, kind, at)


def lower_histogram(emitter: ControlFlowLowering, operation: IROperation) -> None:
    """Count the lanes of each number; a number without a bin makes the result undefined."""
    code, result = emitter.code, operation.result
    values = operation.operands[0]
    mask = operation.operands[1] if len(operation.operands) > 1 else None
    emitter.materialize(*operation.operands)
    kind, element = llvm_type(values.type.element), result.type.element
    buffer = emitter.allocate_for_type(result.type)
    base = emitter.emit_buffer_address(buffer)
    with code.loop(result.type.lanes) as index:
        emitter.emit_lane_store("0", base, element, index)
    with code.loop(values.type.lanes) as index:
        on = "true" if mask is None else emitter.emit_lane(mask, index, {})[0]
        with code.when(on):
            value, _ = emitter.emit_lane(values, index, {})
            number = value if kind == "i64" else code.let(f"sext {kind} {value} to i64")
            known = code.let(f"icmp ult i64 {number}, {result.type.lanes}")
            with code.when(code.let(f"xor i1 {known}, true")):
                answer = str(int(UndefinedResult.HISTOGRAM))
                code.store_element("i64", answer, "%context", LaunchField.UNDEFINED_RESULT)
            with code.when(known):
                counted = emitter.emit_lane_load(base, element, number)
                more = code.let(f"add {llvm_type(element)} {counted}, 1")
                emitter.emit_lane_store(more, base, element, number)
    emitter.set_result_buffer(result, buffer)


# Products

_IEEE_PRECISION = 2  # of Triton's input precisions


def lower_dot(emitter: ControlFlowLowering, operation: IROperation) -> None:
    """In float32, or float64, products exact, summed in the order of the inner axis."""
    code = emitter.code
    a, b, c = operation.operands
    kinds = {a.type.element, b.type.element}
    whole, double = kinds == {"i8"}, kinds | {c.type.element} == {"f64"}
    if (
        "f32" in kinds
        and operation.get_int("inputPrecision") != _IEEE_PRECISION
        and not emitter.exact
    ):
        raise UnsupportedOnCpu("tl.dot of float32 in tf32: only input_precision='ieee' is exact")
    known = {"f16", "bf16", "f32", *FLOAT8_FORMATS}
    if not (whole or double) and (kinds - known or c.type.element not in ("f32", "f16")):
        names = sorted(triton_type_name(kind) for kind in kinds)
        raise UnsupportedOnCpu(f"tl.dot of {names} into {triton_type_name(c.type.element)}")
    element = "i32" if whole else "f64" if double else "f32"
    *batch, rows, columns = c.type.shape
    depth = a.type.shape[-1]
    emitter.materialize(a, b, c)
    left, right, total = (_copy_widened(emitter, value, element) for value in (a, b, c))
    kind = llvm_type(element)
    with code.loop(prod(batch)) as matrix, code.loop(rows) as row, code.loop(depth) as step:
        line = code.let(f"add i64 {code.let(f'mul i64 {matrix}, {rows}')}, {row}")
        at = code.let(f"add i64 {code.let(f'mul i64 {line}, {depth}')}, {step}")
        factor = emitter.emit_lane_load(left, element, at)
        across = code.let(f"add i64 {code.let(f'mul i64 {matrix}, {depth}')}, {step}")
        across = code.let(f"mul i64 {across}, {columns}")
        target = code.let(f"mul i64 {line}, {columns}")
        with code.loop(columns) as column:
            other = emitter.emit_lane_load(right, element, code.let(f"add i64 {across}, {column}"))
            place = code.let(f"add i64 {target}, {column}")
            before = emitter.emit_lane_load(total, element, place)
            if whole:
                now = code.let(f"add i32 {before}, {code.let(f'mul i32 {factor}, {other}')}")
            else:
                now = code.let(
                    f"call {kind} @llvm.fma.{element}"
                    f"({kind} {factor}, {kind} {other}, {kind} {before})"
                )
            emitter.emit_lane_store(now, total, element, place)
    result = operation.result
    if c.type.element == element:
        emitter.buffers[result] = emitter.find_buffer(total)
        return
    buffer = emitter.allocate_for_type(result.type)
    base = emitter.emit_buffer_address(buffer)
    with code.loop(result.type.lanes) as index:
        value = emitter.emit_lane_load(total, element, index)
        narrow = number_formats.emit_narrowing(code, value, kind, result.type.element)
        emitter.emit_lane_store(narrow, base, result.type.element, index)
    emitter.set_result_buffer(result, buffer)


def _copy_widened(emitter: ControlFlowLowering, value: IRValue, element: str) -> str:
    code = emitter.code
    base = emitter.emit_buffer_address(
        emitter.allocate_scratch(value.type.lanes * number_formats.size_of(element))
    )
    with code.loop(value.type.lanes) as index:
        lane, _ = emitter.emit_lane(value, index, {})
        if element == "f32":
            lane, kind = number_formats.emit_widening(code, lane, value.type.element)
            lane = number_formats.emit_narrowing(code, lane, kind, "f32")
        elif value.type.element != element:
            lane = code.let(f"sext {llvm_type(value.type.element)} {lane} to i32")
        emitter.emit_lane_store(lane, base, element, index)
    return base


# Atomics

_ATOMIC_OPERATIONS = {
    1: "and", 2: "or", 3: "xor", 4: "add", 5: "fadd",
    6: "smax", 7: "smin", 8: "umax", 9: "umin", 10: "exchange",
}  # fmt: skip


def lower_atomic(emitter: ControlFlowLowering, operation: IROperation) -> None:
    """Lane after lane; programs run one after the other, so nothing can come between."""
    code = emitter.code
    compares = operation.name == "tt.atomic_cas"
    operands = operation.operands
    pointer, value = operands[0], operands[-1] if compares else operands[1]
    mask = None if compares or len(operands) < 3 else operands[2]
    emitter.materialize(*operands)
    element, result = pointer.type.pointee, operation.result
    addresses = emitter.emit_access("update", operation, mask, "null")
    stored = llvm_storage_type(element)
    buffer = emitter.allocate_for_type(result.type)
    base = emitter.emit_buffer_address(buffer)
    with code.loop(max(1, pointer.type.lanes)) as index:
        emitter.emit_lane_store(_zero_literal(element), base, element, index)
        on = "true" if mask is None else emitter.emit_lane(mask, index, {})[0]
        with code.when(on):
            place = code.to_pointer(code.load_element("i64", addresses, index))
            before = code.load(stored, place)
            operand, _ = emitter.emit_lane(value, index, {})
            if compares:
                expected, _ = emitter.emit_lane(operands[1], index, {})
                now = _emit_compare_exchange(code, element, before, expected, operand)
            else:
                now = _emit_atomic_update(code, operation, element, before, operand)
            code.store(stored, now, place)
            code.store_element(stored, before, base, index)
    emitter.set_result_buffer(result, buffer)


def _zero_literal(element: str) -> str:
    return "0.0" if llvm_type(element) in ("half", "float", "double") else "0"


def _emit_compare_exchange(
    code: LlvmFunction, element: str, before: str, expected: str, operands: str
) -> str:
    kind = llvm_type(element)
    if kind[0] == "i":
        same = code.let(f"icmp eq {kind} {before}, {expected}")
    else:
        bits = f"i{8 * number_formats.size_of(element)}"
        pair = [code.let(f"bitcast {kind} {number} to {bits}") for number in (before, expected)]
        same = code.let(f"icmp eq {bits} {pair[0]}, {pair[1]}")
    return code.let(f"select i1 {same}, {kind} {operands}, {kind} {before}")


def _emit_atomic_update(
    code: LlvmFunction, operation: IROperation, element: str, before: str, operands: str
) -> str:
    rule = _ATOMIC_OPERATIONS.get(operation.get_int("atomic_rmw_op"))
    kind = llvm_type(element)
    if rule is None or element in FLOAT8_FORMATS or element == "i1":
        raise UnsupportedOnCpu(f"an atomic on {triton_type_name(element)}")
    if rule == "exchange":
        return operands
    if rule == "fadd":
        pair = [
            number_formats.emit_widening(code, number, element) for number in (before, operands)
        ]
        wide = pair[0][1]
        total = code.let(f"fadd {wide} {pair[0][0]}, {pair[1][0]}")
        return number_formats.emit_narrowing(code, total, wide, element)
    if rule in ("and", "or", "xor", "add"):
        return code.let(f"{rule} {kind} {before}, {operands}")
    return code.let(f"call {kind} @llvm.{rule}.{kind}({kind} {before}, {kind} {operands})")
