"""Operations over many lanes at once: reductions, scans, histograms, products, atomics.

A reduction is a tree, halves onto halves, as on a GPU: for floats the order decides the last bits.
Integer sums that form addresses are computed in 64 bits and narrowed at the end, so only a total
that does not fit overflows, and no step on the way. Example: 4 lanes of 2**30 in int32 sum up to
2**32; the report says "a sum of 4294967296 became 0 in int32".
"""

from __future__ import annotations

from math import prod

from harness.sanitizer.cpu.abi import LaunchField, UndefinedResult
from harness.sanitizer.cpu.arithmetic import TF32_PRODUCTS
from harness.sanitizer.cpu.control_flow import ControlFlowLowering
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.flow import get_terminator
from harness.sanitizer.ir.graph import IROperation, IRValue
from harness.sanitizer.llvm import number_formats
from harness.sanitizer.llvm.number_formats import (
    FLOAT8_FORMATS,
    UnsupportedOnCpu,
    llvm_storage_type,
    llvm_type,
    triton_type_name,
)
from harness.sanitizer.llvm.text import LlvmFunction


class _AxisFold:
    """A reduction or a scan along one axis, on copies of its operands.

    With `count` elements along the axis and `inner` lanes below it, the element [row, step, column]
    is lane (row * count + step) * inner + column of a copy.
    """

    def __init__(self, emitter: ControlFlowLowering, operation: IROperation) -> None:
        self.emitter, self.operation, self.code = emitter, operation, emitter.code
        shape, axis = operation.operands[0].type.shape, operation.get_int("axis")
        self.count = shape[axis]
        self.outer, self.inner = prod(shape[:axis]), prod(shape[axis + 1 :])
        # Sums of integers that form addresses are computed in 64 bits.
        self.is_wide = operation.result in emitter.address_integers and flow.is_integer_sum(
            operation
        )
        emitter.materialize(*operation.operands)
        self.copies = [self._copy_operand(operand) for operand in operation.operands]

    def _copy_operand(self, operand: IRValue) -> tuple[str, str]:
        """Copy an operand; return the copy's address and element type."""
        element = "i64" if self.is_wide else operand.type.element
        base = self._allocate(operand.type.lanes * number_formats.size_of(element))
        with self.code.loop(operand.type.lanes) as index:
            value, _ = self.emitter.emit_lane(operand, index, {})
            if self.is_wide:
                value = self.code.let(f"sext {llvm_type(operand.type.element)} {value} to i64")
            self.emitter.emit_lane_store(value, base, element, index)
        return base, element

    def _allocate(self, size: int) -> str:
        return self.emitter.emit_buffer_address(self.emitter.allocate_scratch(size))

    def emit_start(self, row: str, column: str, count: int) -> str:
        """Emit the first lane of a row and column, in a buffer of `count` elements on the axis."""
        first = self.code.let(f"mul i64 {row}, {count * self.inner}")
        return self.code.let(f"add i64 {first}, {column}")

    def _combine(self, left: str, right: str, target: str) -> None:
        """Apply the operation's region to two lanes of each copy."""
        emitter, region = self.emitter, self.operation.regions[0]
        operands = [
            emitter.emit_lane_load(base, element, lane)
            for lane in (left, right)
            for base, element in self.copies
        ]
        if self.is_wide:
            results = [self.code.let(f"add i64 {operands[0]}, {operands[1]}")]
        else:
            emitter.scalars.update(zip(region.block.arguments, operands, strict=True))
            for operation in region.block.operations[:-1]:
                emitter.lower_operation(operation)
            results = [emitter.scalars[value] for value in get_terminator(region).operands]
        for value, (base, element) in zip(results, self.copies, strict=True):
            emitter.emit_lane_store(value, base, element, target)

    def emit_tree(self) -> None:
        """Fold the upper half of the axis onto the lower one, until one element is left."""
        if self.count == 1:
            return
        code = self.code
        half = code.alloca("i64", str(self.count // 2))
        head, end = code.make_name("half"), code.make_name("whole")
        code.jump(head)
        code.start_block(head)
        elements = code.load("i64", half)
        width = code.let(f"mul i64 {elements}, {self.inner}")
        with code.loop(self.outer) as row:
            start = code.let(f"mul i64 {row}, {self.count * self.inner}")
            with code.loop(width) as column:
                left = code.let(f"add i64 {start}, {column}")
                self._combine(left, code.let(f"add i64 {left}, {width}"), left)
        following = code.let(f"lshr i64 {elements}, 1")
        code.store("i64", following, half)
        code.emit(f"br i1 {code.let(f'icmp eq i64 {following}, 0')}, label %{end}, label %{head}")
        code.start_block(end)

    def emit_prefixes(self) -> None:
        """Combine each element along the axis with the result of the one before it."""
        code, backwards = self.code, self.operation.get_flag("reverse")
        with (
            code.loop(self.outer) as row,
            code.loop(self.inner) as column,
            code.loop(self.count - 1) as step,
        ):
            start = self.emit_start(row, column, self.count)
            if backwards:
                step = code.let(f"sub i64 {self.count - 2}, {step}")
            low = code.let(f"add i64 {start}, {code.let(f'mul i64 {step}, {self.inner}')}")
            high = code.let(f"add i64 {low}, {self.inner}")
            before, at = (high, low) if backwards else (low, high)
            self._combine(before, at, at)

    def merge_states(self) -> str | None:
        """Merge the overflow states of each row's lanes into that of the row's first lane."""
        emitter, code, states = self.emitter, self.code, self.emitter.overflows.buffers
        sources = [states[operand] for operand in self.operation.operands if operand in states]
        if not sources or emitter.address_integers.may_overflow.isdisjoint(self.operation.results):
            return None
        merged = self._allocate(4 * self.outer * self.count * self.inner)
        sources = [emitter.emit_buffer_address(source) for source in sources]
        with code.loop(self.outer) as row, code.loop(self.inner) as column:
            start = self.emit_start(row, column, self.count)
            emitter.emit_lane_store("0", merged, "i32", start)
            with code.loop(self.count) as step:
                at = code.let(f"add i64 {start}, {code.let(f'mul i64 {step}, {self.inner}')}")
                lanes = [(merged, start), *((source, at) for source in sources)]
                loaded = [emitter.emit_lane_load(base, "i32", lane) for base, lane in lanes]
                state = emitter.overflows.emit_merge(loaded) or "0"
                emitter.emit_lane_store(state, merged, "i32", start)
        return merged

    def emit_narrowed(self, result: IRValue, value: str, state: str | None) -> tuple[str, str]:
        """Narrow a sum of 64 bits to the result's type, with its overflow state."""
        code, element = self.code, result.type.element
        kind, signed = llvm_type(element), self.emitter.address_integers.signed[result]
        narrow = code.let(f"trunc i64 {value} to {kind}")
        back = code.let(f"{'sext' if signed else 'zext'} {kind} {narrow} to i64")
        site = self.emitter.add_site("sum", self.operation, element if signed else f"u{element}")
        overflowed = code.let(f"icmp ne i64 {back}, {value}")
        numbers = (value, "i64"), ("0", "i64"), (narrow, kind)
        return narrow, self.emitter.overflows.emit_overflow_record(
            site, overflowed, signed, *numbers, state
        )


def lower_reduce(emitter: ControlFlowLowering, operation: IROperation) -> None:
    fold, code = _AxisFold(emitter, operation), emitter.code
    fold.emit_tree()
    lane_states = fold.merge_states()
    for result, (copy, element) in zip(operation.results, fold.copies, strict=True):
        target, states = emitter.allocate_for_type(result.type), None
        if result in emitter.address_integers and (fold.is_wide or lane_states is not None):
            states = emitter.allocate_scratch(4 * max(1, result.type.lanes))
        base = emitter.emit_buffer_address(target)
        state_base = emitter.emit_buffer_address(states) if states else None
        with code.loop(fold.outer) as row, code.loop(fold.inner) as column:
            at, to = fold.emit_start(row, column, fold.count), fold.emit_start(row, column, 1)
            value = emitter.emit_lane_load(copy, element, at)
            state = None if lane_states is None else emitter.emit_lane_load(lane_states, "i32", at)
            if fold.is_wide:
                value, state = fold.emit_narrowed(result, value, state)
            emitter.emit_lane_store(value, base, result.type.element, to)
            if state_base is not None and state is not None:
                emitter.emit_lane_store(state, state_base, "i32", to)
        emitter.set_result_buffer(result, target)
        if states is not None:
            emitter.overflows.set_result_buffer(result, states)


def lower_scan(emitter: ControlFlowLowering, operation: IROperation) -> None:
    fold = _AxisFold(emitter, operation)
    if fold.count > 1:
        fold.emit_prefixes()
    for result, (copy, element) in zip(operation.results, fold.copies, strict=True):
        if not fold.is_wide:
            emitter.buffers[result] = emitter.find_buffer(copy)
            continue
        lanes = result.type.lanes
        target, states = emitter.allocate_for_type(result.type), emitter.allocate_scratch(4 * lanes)
        base, state_base = map(emitter.emit_buffer_address, (target, states))
        with emitter.code.loop(lanes) as index:
            value = emitter.emit_lane_load(copy, element, index)
            value, state = fold.emit_narrowed(result, value, None)
            emitter.emit_lane_store(value, base, result.type.element, index)
            emitter.emit_lane_store(state, state_base, "i32", index)
        emitter.set_result_buffer(result, target)
        emitter.overflows.set_result_buffer(result, states)


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

_IEEE_PRECISION = 2  # one of Triton's input precisions


def lower_dot(emitter: ControlFlowLowering, operation: IROperation) -> None:
    """Compute exact products in float32 or float64, summed in the order of the inner axis."""
    code = emitter.code
    a, b, c = operation.operands
    kinds = {a.type.element, b.type.element}
    whole, double = kinds == {"i8"}, kinds | {c.type.element} == {"f64"}
    if "f32" in kinds and operation.get_int("inputPrecision") != _IEEE_PRECISION:
        if not emitter.arithmetic.answers_tf32:
            raise UnsupportedOnCpu(
                "tl.dot of float32 in tf32: only input_precision='ieee' is exact"
            )
        emitter.approximations[TF32_PRODUCTS] = None
    known = {"f16", "bf16", "f32", *FLOAT8_FORMATS}
    if not (whole or double) and (kinds - known or c.type.element not in ("f32", "f16")):
        names = sorted(triton_type_name(kind) for kind in kinds)
        raise UnsupportedOnCpu(f"tl.dot of {names} into {triton_type_name(c.type.element)}")
    element = "i32" if whole else "f64" if double else "f32"
    *batch, rows, columns = c.type.shape
    depth = a.type.shape[-1]
    emitter.materialize(a, b, c)
    left, right, total = (_copy_widened(emitter, value, element) for value in (a, b, c))
    emit_products(emitter, left, right, total, element, (prod(batch), rows, columns, depth))
    kind, result = llvm_type(element), operation.result
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


def emit_products(
    emitter: ControlFlowLowering,
    left: str,
    right: str,
    total: str,
    element: str,
    sides: tuple[int, int, int, int],
) -> None:
    """Add products to a total; `sides`: matrices, rows, columns and the inner axis."""
    code, kind = emitter.code, llvm_type(element)
    matrices, rows, columns, depth = sides
    with code.loop(matrices) as matrix, code.loop(rows) as row, code.loop(depth) as step:
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
            if element == "i32":
                now = code.let(f"add i32 {before}, {code.let(f'mul i32 {factor}, {other}')}")
            else:
                now = code.let(
                    f"call {kind} @llvm.fma.{element}"
                    f"({kind} {factor}, {kind} {other}, {kind} {before})"
                )
            emitter.emit_lane_store(now, total, element, place)


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
    """Update lane after lane; programs run one by one, so nothing can come between."""
    code = emitter.code
    compares = operation.name == "tt.atomic_cas"
    operands = operation.operands
    pointer, value = operands[0], operands[-1] if compares else operands[1]
    mask = None if compares or len(operands) < 3 else operands[2]
    emitter.materialize(*operands)
    element, result = pointer.type.pointee, operation.result
    # A byte for each active lane: 0 where the access was reported.
    allowed = emitter.emit_buffer_address(emitter.allocate_scratch(max(1, pointer.type.lanes)))
    addresses = emitter.emit_access("update", operation, mask, allowed)
    stored = llvm_storage_type(element)
    buffer = emitter.allocate_for_type(result.type)
    base = emitter.emit_buffer_address(buffer)
    with code.loop(max(1, pointer.type.lanes)) as index:
        emitter.emit_lane_store(number_formats.format_zero(element), base, element, index)
        on = "true" if mask is None else emitter.emit_lane(mask, index, {})[0]
        is_allowed = code.let(f"icmp ne i8 {code.load_element('i8', allowed, index)}, 0")
        with code.when(code.let(f"and i1 {on}, {is_allowed}")):
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


def _emit_compare_exchange(
    code: LlvmFunction, element: str, before: str, expected: str, operand: str
) -> str:
    kind = llvm_type(element)
    if kind[0] == "i":
        same = code.let(f"icmp eq {kind} {before}, {expected}")
    else:
        bits = f"i{8 * number_formats.size_of(element)}"
        pair = [code.let(f"bitcast {kind} {number} to {bits}") for number in (before, expected)]
        same = code.let(f"icmp eq {bits} {pair[0]}, {pair[1]}")
    return code.let(f"select i1 {same}, {kind} {operand}, {kind} {before}")


def _emit_atomic_update(
    code: LlvmFunction, operation: IROperation, element: str, before: str, operand: str
) -> str:
    rule = _ATOMIC_OPERATIONS.get(operation.get_int("atomic_rmw_op"))
    kind = llvm_type(element)
    if rule is None or element in FLOAT8_FORMATS or element == "i1":
        raise UnsupportedOnCpu(f"an atomic on {triton_type_name(element)}")
    if rule == "exchange":
        return operand
    if rule == "fadd":
        left, wide = number_formats.emit_widening(code, before, element)
        right, _ = number_formats.emit_widening(code, operand, element)
        total = code.let(f"fadd {wide} {left}, {right}")
        return number_formats.emit_narrowing(code, total, wide, element)
    if rule in ("and", "or", "xor", "add"):
        return code.let(f"{rule} {kind} {before}, {operand}")
    return code.let(f"call {kind} @llvm.{rule}.{kind}({kind} {before}, {kind} {operand})")
