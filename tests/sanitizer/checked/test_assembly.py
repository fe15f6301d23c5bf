"""Assembly in kernels: approximations stay within CUDA's bounds, and are refused for bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from assembly_to_check import (
    apply_to_bits,
    approximate,
    divide_quickly,
    double_halves,
    narrow_in_pairs,
    neighbours,
    read_clock,
    scale_exponents,
    soften,
    store_in_assembly,
    unpack_and_compare,
)
from checks import check_on_cpu, launch_checked

from harness import checking

N = 64
# Each with its value in float64, the operands, and the bound that CUDA's documents give.
APPROXIMATIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float, float]] = {
    "ex2.approx.ftz.f32": (torch.exp2, -20, 20, 2**-22),
    "ex2.approx.f32": (torch.exp2, -140, -127, 2**-1),
    "lg2.approx.f32": (torch.log2, 2.5, 1e6, 2**-22),
    "rcp.approx.f32": (torch.reciprocal, 0.01, 1e6, 2**-23),
    "sqrt.approx.f32": (torch.sqrt, 0.01, 1e6, 2**-23),
    "rsqrt.approx.ftz.f32": (torch.rsqrt, 0.01, 1e6, 2**-22.9),
    "tanh.approx.f32": (torch.tanh, 0.1, 5, 2**-10.987),
}


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_an_approximation_is_within_its_bound(name: str) -> None:
    compute, low, high, bound = APPROXIMATIONS[name]
    x, out = torch.linspace(low, high, N), torch.empty(N)
    with check_on_cpu() as session:
        approximate[(1,)](x, out, ASM=f"{name} $0, $1;", N=N)
        assert session.launches[0].approximations == (f"inline assembly: {name}",)
    true = compute(x.double())
    assert ((out.double() - true).abs() <= bound * true.abs()).all()


def test_a_subnormal_operand_is_flushed_only_where_the_instruction_says_so() -> None:
    x, out = torch.full((N,), -1e-40), torch.empty(N)
    launch_checked(approximate, (1,), x, out, ASM="rcp.approx.ftz.f32 $0, $1;", N=N)
    assert (out == -torch.inf).all()
    launch_checked(approximate, (1,), x, out, ASM="tanh.approx.f32 $0, $1;", N=N)
    assert (out == x).all()


def test_a_quick_division_by_a_huge_number_is_zero() -> None:
    x, y, out = torch.ones(N), torch.full((N,), 2.0**127), torch.empty(N)
    y[0] = 3
    launch_checked(divide_quickly, (1,), x, y, out, N=N)
    assert out[0] == pytest.approx(1 / 3)
    assert (out[1:] == 0).all()


def test_an_approximation_is_refused_where_bits_are_asked_for() -> None:
    x, out = torch.ones(N), torch.empty(N)
    message = "inline assembly: ex2.approx.f32, whose bits depend on the GPU"
    with (
        pytest.raises(checking.UncheckableKernel, match=message),
        checking.checked("cpu", exact=True),
    ):
        approximate[(1,)](x, out, ASM="ex2.approx.f32 $0, $1;", N=N)


def test_predicated_assembly_keeps_its_checks() -> None:
    x, out = torch.linspace(-30, 30, N), torch.empty(N)
    launch_checked(soften, (1,), x, out, N=N)
    assert torch.allclose(out, torch.nn.functional.softplus(x), atol=1e-6)
    with pytest.raises(checking.OutOfBounds, match="past the end of x"), check_on_cpu():
        soften[(1,)](x[:50], out, N=N)


def test_two_halves_in_one_register_are_two_elements() -> None:
    x, out = torch.randn(N).half(), torch.empty(N).half()
    launch_checked(double_halves, (1,), x, out, N=N)
    assert torch.equal(out, x + x)


def test_assembly_gives_two_results() -> None:
    x = torch.arange(N, dtype=torch.int32)
    above, below = torch.empty_like(x), torch.empty_like(x)
    launch_checked(neighbours, (1,), x, above, below, N=N)
    assert torch.equal(above, x + 1)
    assert torch.equal(below, x - 1)


def test_pairs_of_lanes_share_a_block() -> None:
    x, out = torch.linspace(-500, 500, N), torch.empty(N, dtype=torch.float8_e4m3fn)
    launch_checked(narrow_in_pairs, (1,), x, out, N=N)
    assert torch.equal(out.float(), x.clamp(-448, 448).to(torch.float8_e4m3fn).float())


WORDS = [1, 2, 0x12345678, 0x7FFFFFFF] * (N // 4)
BITS: dict[str, Callable[[int], int]] = {
    "shf.l.wrap.b32 $0, $1, $1, 4;": lambda word: word << 4 | word >> 28,
    "prmt.b32 $0, $1, 0, 0x0123;": lambda word: int.from_bytes(word.to_bytes(4, "big"), "little"),
    "lop3.b32 $0, $1, 0xF0F, 0xFF, 0x96;": lambda word: word ^ 0xF0F ^ 0xFF,
    "bfe.u32 $0, $1, 4, 8;": lambda word: word >> 4 & 0xFF,
    "popc.b32 $0, $1;": lambda word: word.bit_count(),
    "{ .reg .b32 t; add.u32 t, $1, 1; { .reg .b32 t; mov.b32 t, 5; } mov.b32 $0, t; }": (
        lambda word: word + 1
    ),
    "add.u32 $0, $0, 5;": lambda word: word + 5,  # the operand is in the result's register
    "{ .reg .f64 d; cvt.rn.f64.u32 d, $1; mul.f64 d, d, 0.7; cvt.rzi.u32.f64 $0, d; }": (
        lambda word: int(word * 0.7)
    ),
}


@pytest.mark.parametrize("text", BITS)
def test_instructions_on_bits_are_what_ptx_says(text: str) -> None:
    x, out = torch.tensor(WORDS, dtype=torch.int32), torch.empty(N, dtype=torch.int32)
    registers = "=r,r" if "$1" in text else "=r,0"
    launch_checked(apply_to_bits, (1,), x, out, ASM=text, REGISTERS=registers, N=N)
    wanted = [BITS[text](word) & 0xFFFFFFFF for word in WORDS]
    assert [number & 0xFFFFFFFF for number in out.tolist()] == wanted


def test_packed_assembly_gives_several_results() -> None:
    x = (torch.arange(N) * 3).to(torch.uint8)
    y = torch.arange(N, dtype=torch.int32) * 2 + 40
    numbers, larger = torch.empty_like(y), torch.empty_like(y)
    launch_checked(unpack_and_compare, (1,), x, y, numbers, larger, N=N)
    assert torch.equal(numbers, x.int())
    assert torch.equal(larger, torch.maximum(x.int(), y))


def test_assembly_reads_the_clock_and_the_number_of_a_core() -> None:
    out = torch.zeros(2, dtype=torch.int64)
    launch_checked(read_clock, (1,), out)
    first = int(out[0])
    launch_checked(read_clock, (1,), out)
    assert 0 < first < int(out[0])
    assert 0 <= int(out[1]) < 132


def test_a_scale_is_the_power_of_two_above() -> None:
    values = [1.0, 1.5, 2.0, 3e38, 2.0**-127, 2.0**-126.5, torch.inf, torch.nan]
    x, out = torch.tensor(values * (N // 8)), torch.empty(N, dtype=torch.uint16)
    launch_checked(scale_exponents, (1,), x, out, N=N)
    assert out.tolist()[:8] == [127, 128, 128, 254, 0, 1, 254, 255]


def test_assembly_with_an_effect_is_no_part_that_is_left_out() -> None:
    """Its result is unused; a launch without its store would count as checked."""
    with (
        pytest.raises(checking.UncheckableKernel, match=r"inline assembly: st\.global\.b32"),
        checking.checked(),
    ):
        store_in_assembly[(1,)](torch.zeros(32, dtype=torch.int32), 32)
