"""`tl.dot_scaled`: products of numbers in four or eight bits with a scale for each few of them.

A scale is a power of two (e8m0), so a scaled number is exact in bfloat16 and here in float32.
Example: the byte 0x5A is the two numbers of e2m1 -1.0 and 3.0, the lower one first; with the
scale 128 they are -2.0 and 6.0.
"""

from __future__ import annotations

from harness.sanitizer.cpu.control_flow import ControlFlowLowering
from harness.sanitizer.cpu.cross_lane_ops import emit_products
from harness.sanitizer.ir.graph import IROperation, IRValue
from harness.sanitizer.llvm.number_formats import (
    UnsupportedOnCpu,
    emit_narrowing,
    emit_widening,
    size_of,
)

_FLOAT4 = 4  # of Triton's numbers of formats: two numbers in a byte
_FORMATS = {0: "f8E4M3FN", 1: "f8E5M2", 5: "bf16", 6: "f16"}


def lower_dot_scaled(emitter: ControlFlowLowering, operation: IROperation) -> None:
    groups = [[*group, None][0] for group in operation.split_operands()]
    left, right, total, left_scale, right_scale = groups
    assert left is not None
    assert right is not None
    assert total is not None
    if not (operation.get_flag("lhs_k_pack") and operation.get_flag("rhs_k_pack")):
        raise UnsupportedOnCpu("dot_scaled of numbers that are packed along M or N")
    emitter.materialize(*operation.operands)
    *batch, rows, columns = total.type.shape
    if batch:
        raise UnsupportedOnCpu("dot_scaled of several matrices")
    is_packed = operation.get_int("a_elem_type") == _FLOAT4
    depth = left.type.shape[-1] * (2 if is_packed else 1)
    factors = (
        _scale_factor(emitter, left, left_scale, operation.get_int("a_elem_type"), rows, depth),
        _scale_factor(
            emitter, right, right_scale, operation.get_int("b_elem_type"), columns, depth, True
        ),
    )
    target = emitter.allocate_for_type(operation.result.type)
    base, code = emitter.emit_buffer_address(target), emitter.code
    with code.loop(total.type.lanes) as index:
        emitter.emit_lane_store(emitter.emit_lane(total, index, {})[0], base, "f32", index)
    emit_products(emitter, *factors, base, "f32", (1, rows, columns, depth))
    emitter.set_result_buffer(operation.result, target)


def _scale_factor(
    emitter: ControlFlowLowering,
    value: IRValue,
    scale: IRValue | None,
    number_format: int,
    lines: int,
    depth: int,
    is_right: bool = False,
) -> str:
    """Compute a factor in float32, of the shape [lines, depth], or [depth, lines] on the right."""
    if number_format not in (_FLOAT4, *_FORMATS) or (number_format == 6 and scale is not None):
        raise UnsupportedOnCpu(f"dot_scaled of Triton's number format {number_format}")
    code = emitter.code
    base = emitter.emit_buffer_address(emitter.allocate_scratch(lines * depth * size_of("f32")))
    packed = 2 if number_format == _FLOAT4 else 1
    with code.loop(lines) as line, code.loop(depth) as step:
        place = code.let(f"udiv i64 {step}, {packed}")
        number = _emit_number(
            emitter, value, _emit_place(emitter, line, place, lines, depth // packed, is_right),
            step, number_format,
        )  # fmt: skip
        if scale is not None:
            per_line = scale.type.shape[-1]
            at = code.let(f"udiv i64 {step}, {depth // per_line}")
            at = _emit_place(emitter, line, at, lines, per_line, False)
            number = _emit_scaled(emitter, number, emitter.emit_lane(scale, at, {})[0])
        index = _emit_place(emitter, line, step, lines, depth, is_right)
        emitter.emit_lane_store(number, base, "f32", index)
    return base


def _emit_place(
    emitter: ControlFlowLowering, line: str, step: str, lines: int, steps: int, is_right: bool
) -> str:
    code = emitter.code
    major, minor, count = (step, line, lines) if is_right else (line, step, steps)
    return code.let(f"add i64 {code.let(f'mul i64 {major}, {count}')}, {minor}")


def _emit_number(
    emitter: ControlFlowLowering, value: IRValue, index: str, step: str, number_format: int
) -> str:
    code = emitter.code
    lane, _ = emitter.emit_lane(value, index, {})
    if number_format != _FLOAT4:
        wide, kind = emit_widening(code, lane, _FORMATS[number_format])
        return emit_narrowing(code, wide, kind, "f32")
    shift = code.let(f"shl i64 {code.let(f'and i64 {step}, 1')}, 2")
    nibble = code.let(f"lshr i8 {lane}, {code.let(f'trunc i64 {shift} to i8')}")
    half = code.let(f"bitcast i16 {code.let(f'call i16 @widen_e2m1(i8 {nibble})')} to half")
    return code.let(f"fpext half {half} to float")


def _emit_scaled(emitter: ControlFlowLowering, number: str, scale: str) -> str:
    """Multiply by 2**(scale - 127); the scale 255 is NaN."""
    code = emitter.code
    exponent = code.let(f"add i64 {code.let(f'zext i8 {scale} to i64')}, {1023 - 127}")
    power = code.let(f"bitcast i64 {code.let(f'shl i64 {exponent}, 52')} to double")
    product = code.let(f"fmul double {code.let(f'fpext float {number} to double')}, {power}")
    narrow = code.let(f"fptrunc double {product} to float")
    is_nan = code.let(f"icmp eq i8 {scale}, -1")
    return code.let(f"select i1 {is_nan}, float 0x7FF8000000000000, float {narrow}")
