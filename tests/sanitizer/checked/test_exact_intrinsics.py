"""Functions whose result CUDA specifies exactly give it, bit for bit; others are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from checks import launch_checked
from hypothesis import given, settings
from hypothesis import strategies as st
from intrinsics_to_check import (
    add_atomically,
    bin_values,
    classify_floats,
    combine_pairs,
    count_bits,
    halve_bits,
    round_results,
)

from harness import checking

few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31 - 1)
Array = np.ndarray[Any, Any]
FLOATS = {"float32": torch.float32, "float64": torch.float64}
N = 64
# Zeros, subnormal numbers, infinities and NaN.
EDGES = [0.0, -0.0, 1e-40, -1e-45, float("inf"), -float("inf"), float("nan"), 3e38]


def make_random(seed: int, dtype: torch.dtype) -> torch.Tensor:
    random = np.random.default_rng(seed)
    values = random.normal(size=N) * 10.0 ** random.integers(-30, 30, size=N)
    values[random.integers(0, N, size=len(EDGES))] = EDGES
    return torch.from_numpy(values).to(dtype)


def equal_bits(found: torch.Tensor, wanted: Array) -> bool:
    """Return whether values are equal bit for bit, except that any NaN equals any other."""
    return np.array_equal(found.numpy(), wanted, equal_nan=True) and np.array_equal(
        np.signbit(found.numpy()) | np.isnan(wanted), np.signbit(wanted) | np.isnan(wanted)
    )


@few
@given(st.sampled_from(sorted(FLOATS)), seeds)
def test_functions_of_libdevice_that_round_to_the_nearest(kind: str, seed: int) -> None:
    x, y = make_random(seed, FLOATS[kind]), make_random(seed + 1, FLOATS[kind])
    out = torch.empty((6, N), dtype=FLOATS[kind])
    launch_checked(round_results, (1,), x, y, out, N=N)
    a, b = x.numpy(), y.numpy()
    with np.errstate(all="ignore"):
        expected = np.stack([a + b, a * b, a / b, np.sqrt(a), np.reciprocal(a)])
    assert equal_bits(out[:5], expected)


@few
@given(seeds)
def test_a_fused_product_is_rounded_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    x, y = (torch.from_numpy(random.normal(size=N)).to(torch.float32) for _ in range(2))
    out = torch.empty((6, N))
    launch_checked(round_results, (1,), x, y, out, N=N)
    # Two float32 have an exact product in float64.
    assert equal_bits(out[5], (x.double() * y.double() + x.double()).float().numpy())


def count_expected(value: int, bits: int) -> list[int]:
    """Return the bits that are set, those in front of the first, its place, and the reverse."""
    number = value % (1 << bits)
    first = (value & -value).bit_length()
    reverse = int(f"{number:0{bits}b}"[::-1], 2)
    return [number.bit_count(), bits - number.bit_length(), first, reverse]


@few
@given(st.sampled_from((32, 64)), seeds)
def test_bits_are_counted(bits: int, seed: int) -> None:
    dtype = torch.int32 if bits == 32 else torch.int64
    ends = torch.iinfo(dtype)
    random = np.random.default_rng(seed).integers(ends.min, ends.max, size=N, endpoint=True)
    random[:3] = 0, -1, ends.min
    x, out = torch.from_numpy(random).to(dtype), torch.empty((4, N), dtype=dtype)
    launch_checked(count_bits, (1,), x, out, N=N)
    for value, counts in zip(x.tolist(), out.T.tolist(), strict=True):
        assert [count % (1 << bits) for count in counts] == count_expected(value, bits)


@few
@given(st.sampled_from(sorted(FLOATS)), seeds)
def test_nan_infinity_and_sign_are_recognized(kind: str, seed: int) -> None:
    x, out = make_random(seed, FLOATS[kind]), torch.empty((3, N), dtype=torch.int32)
    launch_checked(classify_floats, (1,), x, out, N=N)
    a = x.numpy()
    assert np.array_equal(out.numpy() != 0, np.stack([np.isnan(a), np.isinf(a), np.signbit(a)]))


OPERATORS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=6, deadline=None)
@given(turned=st.booleans(), seed=seeds)
def test_instructions_that_round_to_the_nearest(name: str, turned: bool, seed: int) -> None:
    x, y = make_random(seed, torch.float32), make_random(seed + 1, torch.float32)
    out = torch.empty_like(x)
    places = "$2, $1" if turned else "$1, $2"
    launch_checked(combine_pairs, (1,), x, y, out, ASM=f"{name}.rn.f32 $0, {places};", N=N)
    left, right = (y, x) if turned else (x, y)
    with np.errstate(all="ignore"):
        assert equal_bits(out, OPERATORS[name](left.numpy(), right.numpy()))


@few
@given(st.sampled_from((("bf16", torch.bfloat16), ("f16", torch.float16))), seeds)
def test_instructions_that_narrow(how: tuple[str, torch.dtype], seed: int) -> None:
    name, dtype = how
    x, out = make_random(seed, torch.float32), torch.empty(N, dtype=torch.int16)
    launch_checked(halve_bits, (1,), x, out, ASM=f"cvt.rn.{name}.f32 $0, $1;", N=N)
    found, wanted = out.view(dtype).float().numpy(), x.to(dtype).float().numpy()
    assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("text", ["add.rn.f32 $0, $1, $3;", "mul.rn.f32 $0, $1;", "add.rz.f32"])
def test_other_assembly_is_refused_by_name(text: str) -> None:
    x = torch.ones(N)
    with pytest.raises(checking.UncheckableKernel, match="inline assembly"):
        launch_checked(combine_pairs, (1,), x, x, x, ASM=text, N=N)


@few
@given(st.lists(st.integers(0, 15), min_size=N, max_size=N), st.booleans(), seeds)
def test_histograms_count(values: list[int], masked: bool, seed: int) -> None:
    x = torch.tensor(values, dtype=torch.int32)
    on = torch.from_numpy(np.random.default_rng(seed).integers(0, 2, size=N).astype(bool))
    out = torch.empty(16, dtype=torch.int32)
    launch_checked(bin_values, (1,), x, on, out, MASKED=masked, N=N, BINS=16)
    assert torch.equal(out, torch.bincount(x[on] if masked else x, minlength=16).int())


@pytest.mark.parametrize("stray", [16, -1])
def test_a_number_without_a_bin_is_refused(stray: int) -> None:
    x, on = torch.zeros(N, dtype=torch.int32), torch.ones(N, dtype=torch.bool)
    out = torch.empty(16, dtype=torch.int32)
    x[3] = stray
    with pytest.raises(checking.UncheckableKernel, match="has no bin"):
        launch_checked(bin_values, (1,), x, on, out, MASKED=False, N=N, BINS=16)
    on[3] = False
    launch_checked(bin_values, (1,), x, on, out, MASKED=True, N=N, BINS=16)
    assert out.tolist() == [N - 1] + [0] * 15


@few
@given(st.sampled_from((torch.bfloat16, torch.float16, torch.float32)), st.integers(1, 5), seeds)
def test_atomic_sums_are_rounded_each_time(dtype: torch.dtype, programs: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = torch.from_numpy(random.normal(size=(programs, N))).to(dtype)
    total = torch.from_numpy(random.normal(size=N)).to(dtype)
    wanted = total.clone()
    for row in x:  # one program after the other, as they run here
        wanted += row
    launch_checked(add_atomically, (programs,), x, total, N=N)
    assert torch.equal(total, wanted)
