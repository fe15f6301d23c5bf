"""Functions in LLVM that the instructions on floats call."""

from __future__ import annotations

# Above which numbers the codes of 4-bit floats begin, from the second code on.
_E2M1_LIMITS = (
    ("ugt", 0.25), ("uge", 0.75), ("ugt", 1.25), ("uge", 1.75), ("ugt", 2.5), ("uge", 3.5),
    ("ugt", 5.0),
)  # fmt: skip
# Helpers that `number_formats.select_called_helpers` adds to a module that calls them.
FLOAT_HELPERS = {
    "flush": """define internal float @flush(float %x) alwaysinline {
  %a = call float @llvm.fabs.f32(float %x)
  %small = fcmp olt float %a, 0x3810000000000000
  %zero = call float @llvm.copysign.f32(float 0.0, float %x)
  %r = select i1 %small, float %zero, float %x
  ret float %r
}
""",
    "quiet": """define internal float @quiet(float %x) alwaysinline {
  %nan = fcmp uno float %x, 0.0
  %canonical = bitcast i32 2147483647 to float
  %r = select i1 %nan, float %canonical, float %x
  ret float %r
}
""",
    # The float next to s + e in a direction: 0 to zero, 1 down, 2 up; e is less than a place of s.
    "round_directed": """define internal float @round_directed(double %s, double %e, i32 %mode) {
  %f = fptrunc double %s to float
  %back = fpext float %f to double
  %same = fcmp oeq double %back, %s
  %rest = fsub double %s, %back
  %off = select i1 %same, double %e, double %rest
  %below = fcmp olt double %off, 0.0
  %above = fcmp ogt double %off, 0.0
  %bits = bitcast float %f to i32
  %negative = fcmp olt double %s, 0.0
  %zero = fcmp oeq float %f, 0.0
  %sticks = fcmp olt double %e, 0.0
  %sign.zero = select i1 %same, i1 %sticks, i1 %negative
  %is.negative = select i1 %zero, i1 %sign.zero, i1 %negative
  %rz = icmp eq i32 %mode, 0
  %rm = icmp eq i32 %mode, 1
  %rp = icmp eq i32 %mode, 2
  %rz.down = xor i1 %is.negative, true
  %down.mode = select i1 %rz, i1 %rz.down, i1 %rm
  %up.mode = select i1 %rz, i1 %is.negative, i1 %rp
  %down = and i1 %below, %down.mode
  %up = and i1 %above, %up.mode
  %bits.negative = icmp slt i32 %bits, 0
  %inc = add i32 %bits, 1
  %dec = sub i32 %bits, 1
  %down.bits0 = select i1 %bits.negative, i32 %inc, i32 %dec
  %down.bits = select i1 %zero, i32 -2147483647, i32 %down.bits0
  %up.bits0 = select i1 %bits.negative, i32 %dec, i32 %inc
  %up.bits = select i1 %zero, i32 1, i32 %up.bits0
  %one = select i1 %down, i32 %down.bits, i32 %bits
  %two = select i1 %up, i32 %up.bits, i32 %one
  %nan = fcmp uno double %s, 0.0
  %three = select i1 %nan, i32 %bits, i32 %two
  %r = bitcast i32 %three to float
  ret float %r
}
""",
    # The sum of two numbers and its rounding error.
    "sum_directed": """define internal float @sum_directed(double %a, double %b, i32 %mode) {
  %s = fadd double %a, %b
  %bb = fsub double %s, %a
  %aa = fsub double %s, %bb
  %db = fsub double %b, %bb
  %da = fsub double %a, %aa
  %e0 = fadd double %da, %db
  %size = call double @llvm.fabs.f64(double %s)
  %finite = fcmp olt double %size, 0x7FF0000000000000
  %e = select i1 %finite, double %e0, double 0.0
  %r = call float @round_directed(double %s, double %e, i32 %mode)
  %abits = bitcast double %a to i64
  %bbits = bitcast double %b to i64
  %differ = xor i64 %abits, %bbits
  %apart = icmp slt i64 %differ, 0
  %zero = fcmp oeq double %s, 0.0
  %down = icmp eq i32 %mode, 1
  %both = and i1 %apart, %zero
  %minus = and i1 %both, %down
  %result = select i1 %minus, float -0.0, float %r
  ret float %result
}
""",
    "narrow_odd": """define internal float @narrow_odd(double %x) alwaysinline {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %exact = fcmp ueq double %back, %x
  %size = call double @llvm.fabs.f64(double %x)
  %near.size = call double @llvm.fabs.f64(double %back)
  %above = fcmp ogt double %near.size, %size
  %bits = bitcast float %near to i32
  %less = sub i32 %bits, 1
  %down = select i1 %above, i32 %less, i32 %bits
  %odd = or i32 %down, 1
  %chosen = select i1 %exact, i32 %bits, i32 %odd
  %r = bitcast i32 %chosen to float
  ret float %r
}
""",
    # The code of a 4-bit float next to a number; between two, the even one. NaN is the largest.
    "narrow_e2m1": """define internal i8 @narrow_e2m1(float %x) alwaysinline {
  %a = call float @llvm.fabs.f32(float %x)
"""
    + "".join(
        f"  %c{code} = fcmp {order} float %a, {limit}\n  %w{code} = zext i1 %c{code} to i8\n"
        f"  %s{code} = add i8 {f'%s{code - 1}' if code > 1 else '0'}, %w{code}\n"
        for code, (order, limit) in enumerate(_E2M1_LIMITS, 1)
    )
    + """  %bits = bitcast float %x to i32
  %negative = icmp slt i32 %bits, 0
  %number = fcmp ord float %x, 0.0
  %minus = and i1 %negative, %number
  %sign = select i1 %minus, i8 8, i8 0
  %r = or i8 %s7, %sign
  ret i8 %r
}
""",
    "widen_e2m1": """define internal i16 @widen_e2m1(i8 %code) alwaysinline {
  %low = and i8 %code, 7
  %wide = zext i8 %low to i16
  %moved = shl i16 %wide, 9
  %normal = add i16 %moved, 14336
  %small = icmp ult i8 %low, 2
  %half = mul i16 %wide, 14336
  %size = select i1 %small, i16 %half, i16 %normal
  %signs = and i8 %code, 8
  %far = zext i8 %signs to i16
  %sign = shl i16 %far, 12
  %r = or i16 %size, %sign
  ret i16 %r
}
""",
}
