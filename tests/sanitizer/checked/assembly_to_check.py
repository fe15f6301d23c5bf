"""Kernels with blocks of assembly: approximate, predicated, packed, with several results."""

import triton
import triton.language as tl
from triton.language.extra import libdevice

SOFTPLUS = tl.constexpr(
    "{ .reg .pred p; setp.gt.f32  p, $1, 20.; @p  mov.f32  $0, $1;"
    " @!p mul.f32 $0, $1, 1.4426950408889634; @!p ex2.approx.ftz.f32 $0, $0;"
    " @!p add.f32 $0, $0, 1.0; @!p lg2.approx.ftz.f32 $0, $0;"
    " @!p mul.f32 $0, $0, 0.6931471805599453; }"
)
TO_FP8_PAIR = tl.constexpr(
    "{ .reg .b16 packed; cvt.rn.satfinite.e4m3x2.f32 packed, $3, $2;"
    " cvt.u32.u16 $0, packed; shr.b32 $1, $0, 8; }"
)


@triton.jit
def approximate(x, out, ASM: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    r = tl.inline_asm_elementwise(ASM, "=f,f", [tl.load(x + at)], tl.float32, is_pure=True, pack=1)
    tl.store(out + at, r)


@triton.jit
def divide_quickly(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, libdevice.fast_dividef(tl.load(x + at), tl.load(y + at)))


@triton.jit
def soften(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.load(x + at)
    r = tl.inline_asm_elementwise(SOFTPLUS, "=r,r", [value], tl.float32, is_pure=True, pack=1)
    tl.store(out + at, r)


@triton.jit
def double_halves(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    r = tl.inline_asm_elementwise(
        "add.f16x2 $0, $1, $1;", "=r,r", [tl.load(x + at)], tl.float16, is_pure=True, pack=2
    )
    tl.store(out + at, r)


@triton.jit
def neighbours(x, above, below, N: tl.constexpr):
    at = tl.arange(0, N)
    one_up, one_down = tl.inline_asm_elementwise(
        "add.u32 $0, $2, 1; sub.u32 $1, $2, 1;",
        "=r,=r,r",
        [tl.load(x + at)],
        (tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )
    tl.store(above + at, one_up)
    tl.store(below + at, one_down)


@triton.jit
def narrow_in_pairs(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    bits = tl.inline_asm_elementwise(
        TO_FP8_PAIR, "=r,=r,f,f", [tl.load(x + at)], tl.int32, is_pure=True, pack=2
    )
    tl.store(out + at, bits.to(tl.uint8).to(tl.float8e4nv, bitcast=True))


@triton.jit
def store_in_assembly(out, N: tl.constexpr):
    tl.inline_asm_elementwise(
        "st.global.b32 [$1], 7; mov.b32 $0, 0;",
        "=r,l",
        [out + tl.arange(0, N)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def apply_to_bits(x, out, ASM: tl.constexpr, REGISTERS: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    r = tl.inline_asm_elementwise(ASM, REGISTERS, [tl.load(x + at)], tl.int32, is_pure=True, pack=1)
    tl.store(out + at, r)


UNPACK_AND_COMPARE = tl.constexpr("""
{
    .reg .b8 part<4>;
    mov.b32 {part0, part1, part2, part3}, $8;
    cvt.u32.u8 $0, part0;
    cvt.u32.u8 $1, part1;
    cvt.u32.u8 $2, part2;
    cvt.u32.u8 $3, part3;
    max.u32 $4, $0, $9;
    max.u32 $5, $1, $10;
    max.u32 $6, $2, $11;
    max.u32 $7, $3, $12;
}
""")


@triton.jit
def unpack_and_compare(x, y, bytes_out, larger_out, N: tl.constexpr):
    at = tl.arange(0, N)
    numbers, larger = tl.inline_asm_elementwise(
        UNPACK_AND_COMPARE,
        "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r",
        [tl.load(x + at), tl.load(y + at)],
        (tl.int32, tl.int32),
        is_pure=True,
        pack=4,
    )
    tl.store(bytes_out + at, numbers)
    tl.store(larger_out + at, larger)


@triton.jit
def read_clock(out):
    asm: tl.constexpr = "mov.u64 $0, %globaltimer;"
    tl.store(out, tl.inline_asm_elementwise(asm, "=l", [], tl.int64, is_pure=False, pack=1))
    asm2: tl.constexpr = "mov.u32 $0, %smid;"
    core = tl.inline_asm_elementwise(asm2, "=r", [], tl.int32, is_pure=True, pack=1)
    tl.store(out + 1, core.to(tl.int64))


@triton.jit
def scale_exponents(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    asm: tl.constexpr = "cvt.rp.satfinite.ue8m0x2.f32 $0, 0.0, $1;"
    r = tl.inline_asm_elementwise(asm, "=h,r", [tl.load(x + at)], tl.uint16, True, 1)
    tl.store(out + at, r)
