"""Kernels on the CPU give numpy's results: types, masks, loops, branches that differ by program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from checks import launch_checked
from hypothesis import given, settings
from hypothesis import strategies as st
from operations_to_check import (
    branching,
    compact_nonzero,
    counted_down,
    fold_axis,
    integers,
    join_and_split,
    looping,
    map_packed,
    map_pairs,
    multiply_matrices,
    multiply_scaled,
    returning,
    scan_rows,
    shift_in_place,
    swapping,
    tiles,
    transpose_values,
)

from harness import checking
from harness.sanitizer.ir import mlir_printer
from harness.sanitizer.triton import graph_loader

few = settings(max_examples=25, deadline=None)
Array = np.ndarray[Any, Any]
SIDES = st.sampled_from((1, 2, 4, 16, 64))
INTEGERS = {"int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64}
seeds = st.integers(0, 2**31 - 1)


def make_random(seed: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    random = np.random.default_rng(seed)
    if dtype.is_floating_point:
        return torch.from_numpy(random.normal(size=shape)).to(dtype)
    ends = torch.iinfo(dtype)
    whole = random.integers(ends.min, ends.max, size=shape, endpoint=True, dtype=np.int64)
    return torch.from_numpy(whole).to(dtype)


def compute_integers(a: Array, b: Array, c: Array, d: Array) -> Array:
    """Compute what `integers` stores; `fmod` has the dividend's sign, as C's remainder."""
    remainder = np.fmod(a, c)
    bitwise = a & b, a | b, a ^ b
    extrema = np.minimum(a, b), np.maximum(a, b)
    division = (a - remainder) // c, remainder
    return np.stack([a + b, a - b, a * b, *bitwise, *extrema, *division, a < b, a << d, a >> d])


@few
@given(st.sampled_from(sorted(INTEGERS)), SIDES, seeds)
def test_integers(kind: str, side: int, seed: int) -> None:
    dtype = INTEGERS[kind]
    x, y, z, shift = (make_random(seed + number, dtype, side) for number in range(4))
    divisor = torch.where((z == 0) | (z == -1), 3, z).to(dtype)
    shift = shift % (8 * dtype.itemsize)
    out = torch.zeros((13, side), dtype=dtype)
    launch_checked(integers, (1,), x, y, divisor, shift, out, N=side)
    with np.errstate(over="ignore"):
        expected = compute_integers(*(tensor.numpy() for tensor in (x, y, divisor, shift)))
    assert np.array_equal(out.numpy(), expected)


@few
@given(SIDES, SIDES, st.integers(0, 64), st.integers(0, 64), seeds)
def test_tiles_of_a_matrix_with_masks(m: int, n: int, rows: int, columns: int, seed: int) -> None:
    rows, columns = min(rows, m), min(columns, n)
    x, y = make_random(seed, torch.float32, m, n), make_random(seed + 1, torch.float32, n)
    out = torch.full((m, n), -1.0)
    launch_checked(tiles, (1,), x, y, out, rows, columns, M=m, N=n)
    expected = np.full((m, n), -1.0, dtype=np.float32)
    expected[:rows, :columns] = (x.numpy() * 2 + y.numpy()[None, :])[:rows, :columns]
    assert np.array_equal(out.numpy(), expected)


@few
@given(st.sampled_from(("sum", "max", "min", "argmax")), SIDES, SIDES, st.integers(0, 1), seeds)
def test_reductions_over_either_axis(name: str, m: int, n: int, axis: int, seed: int) -> None:
    x = make_random(seed, torch.int16, m, n).to(torch.int32)
    out = torch.zeros(n if axis == 0 else m, dtype=torch.int32)
    launch_checked(fold_axis, (1,), x, out, OP=name, M=m, N=n, AXIS=axis)
    assert out.tolist() == getattr(np, name)(x.numpy(), axis=axis).tolist()


@few
@given(SIDES, SIDES, st.booleans(), seeds)
def test_scans(m: int, n: int, backwards: bool, seed: int) -> None:
    x = make_random(seed, torch.int16, m, n).to(torch.int32)
    out = torch.zeros_like(x)
    launch_checked(scan_rows, (1,), x, out, M=m, N=n, BACKWARDS=backwards)
    a = x.numpy()
    expected = np.cumsum(a[:, ::-1], axis=1)[:, ::-1] if backwards else np.cumsum(a, axis=1)
    assert np.array_equal(out.numpy(), expected)


@few
@given(SIDES, SIDES, seeds)
def test_a_transposed_tile(m: int, n: int, seed: int) -> None:
    x = make_random(seed, torch.int32, m, n)
    out = torch.zeros((n, m), dtype=torch.int32)
    launch_checked(transpose_values, (1,), x, out, M=m, N=n)
    assert torch.equal(out, x.T)


@few
@given(SIDES, seeds)
def test_two_tensors_joined_and_split_again(n: int, seed: int) -> None:
    x, y = make_random(seed, torch.int32, n), make_random(seed + 1, torch.int32, n)
    both, first, second = torch.zeros((n, 2), dtype=torch.int32), x * 0, x * 0
    launch_checked(join_and_split, (1,), x, y, both, first, second, N=n)
    assert torch.equal(both, torch.stack((x, y), dim=1))
    assert torch.equal(first, y)
    assert torch.equal(second, x)


@few
@given(st.sampled_from((torch.float16, torch.float32, torch.float64, torch.int8)), seeds)
def test_products_of_matrices(dtype: torch.dtype, seed: int) -> None:
    most = 1 << 24 if dtype == torch.float64 else 8  # their sums are exact, in that type alone
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(-most, most + 1, (16, 32), generator=generator) for _ in range(2))
    kinds = {torch.int8: torch.int32, torch.float64: torch.float64}
    out = torch.zeros((16, 16), dtype=kinds.get(dtype, torch.float32))
    launch_checked(multiply_matrices, (1,), x.to(dtype), y.to(dtype), out, K=32)
    assert torch.equal(out.long(), x.long() @ y.long().T)


@few
@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), seeds)
def test_loops_of_different_lengths(lengths: list[int], seed: int) -> None:
    counts = torch.tensor(lengths, dtype=torch.int32)
    x = make_random(seed, torch.int16, 40, 8).to(torch.int32)
    out = torch.zeros((len(lengths), 8), dtype=torch.int32)
    launch_checked(looping, (len(lengths),), x, counts, out, N=8)
    expected = [x[:length].sum(0).tolist() for length in lengths]
    assert out.tolist() == expected


@few
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9))
def test_branches_and_early_returns(values: list[int]) -> None:
    x = torch.tensor(values, dtype=torch.int32)
    for kernel, rule in (
        (branching, lambda v: v * 10 if v > 0 else (v - 100 if v < -2 else 7)),
        (returning, lambda v: -1 if v < 0 else (v * 3 if v > 2 else v)),
    ):
        out = torch.full((len(values),), -1, dtype=torch.int32)
        launch_checked(kernel, (len(values),), x, out)
        assert out.tolist() == [rule(value) for value in values]


@few
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=5))
def test_while_loops(values: list[int]) -> None:
    x = torch.tensor(values, dtype=torch.int32)
    out = torch.zeros_like(x)
    launch_checked(counted_down, (len(values),), x, out)
    assert out.tolist() == [len(bin(value)) - 2 if value else 0 for value in values]


@few
@given(st.integers(0, 7), seeds)
def test_a_loop_may_swap_what_it_carries(turns: int, seed: int) -> None:
    x, y = make_random(seed, torch.int32, 16), make_random(seed + 1, torch.int32, 16)
    a, b = x.clone(), y.clone()
    launch_checked(swapping, (1,), a, b, turns, N=16)
    assert torch.equal(a, y if turns % 2 else x)
    assert torch.equal(b, x if turns % 2 else y)


def test_a_store_comes_after_all_lanes_of_the_load_before_it() -> None:
    x = torch.arange(16, dtype=torch.int32)
    launch_checked(shift_in_place, (1,), x, N=8)
    assert x.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, *range(9, 16)]


@few
@given(st.lists(st.booleans(), min_size=16, max_size=16))
def test_atomics_return_the_old_value(chosen: list[bool]) -> None:
    x = torch.tensor(chosen, dtype=torch.int32)
    count, out = torch.zeros(1, dtype=torch.int32), torch.full((16,), -1, dtype=torch.int32)
    launch_checked(compact_nonzero, (16,), x, count, out)
    assert count.tolist() == [sum(chosen)]
    expected = [place for place, is_chosen in enumerate(chosen) if is_chosen]
    assert out.tolist() == expected + [-1] * (16 - len(expected))


def test_a_graph_can_be_walked_and_printed() -> None:
    x = torch.zeros(8, dtype=torch.int32)
    graph = graph_loader.read_graph(shift_in_place, (x,), {"N": 8})
    assert [value.name for value in graph.parameters] == ["x"]
    load, store = (each for each in graph.walk() if each.name in ("tt.load", "tt.store"))
    assert (load.name, store.name) == ("tt.load", "tt.store")
    assert store.source.file.endswith("operations_to_check.py")
    assert '"tt.store"(' in mlir_printer.format_mlir(graph)


def test_products_in_tf32_are_refused_by_name() -> None:
    x, out = torch.ones((16, 16)), torch.zeros((16, 16))
    launch_checked(_product, (1,), x, x, out, PRECISION="ieee")
    with pytest.raises(checking.UncheckableKernel, match="in tf32"):
        launch_checked(_product, (1,), x, x, out, PRECISION="tf32")
    with checking.run_kernels_on_cpu():
        _product[(1,)](x, x, out, PRECISION="tf32")
    assert out[0, 0] == 16


@triton.jit
def _product(x, y, out, PRECISION: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at), input_precision=PRECISION))


def test_a_function_with_branches_is_called_on_each_element() -> None:
    x, y = torch.arange(16, dtype=torch.int32), torch.full((16,), 7, dtype=torch.int32)
    out = torch.empty_like(x)
    launch_checked(map_pairs, (1,), x, y, out, N=16)
    assert out.tolist() == [2 * number if number < 7 else 8 for number in range(16)]


def test_a_mapped_function_takes_several_elements_at_once() -> None:
    x = torch.arange(16, dtype=torch.int32) ^ 1
    low, high = torch.empty_like(x), torch.empty_like(x)
    launch_checked(map_packed, (1,), x, x + 100, low, high, N=16)
    pairs = range(0, 16, 2)
    assert low.tolist() == [each for pair in pairs for each in (pair, pair + 100)]
    assert high.tolist() == [each for pair in pairs for each in (pair + 1, pair + 101)]


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


@pytest.mark.parametrize(("left", "right"), [("e2m1", "e4m3"), ("e5m2", "e2m1"), ("bf16", "e4m3")])
def test_scaled_products_are_those_of_the_scaled_numbers(left: str, right: str) -> None:
    rows, columns, depth = 16, 16, 64
    generator = torch.Generator().manual_seed(3)
    kinds = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}

    def make_factor(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Make [lines, depth] numbers as a kernel gets them, and their values."""
        if name != "e2m1":
            number = torch.randn(rows, depth, generator=generator).to(kinds[name])
            number[3, 32:] = 0
            return number, number.float()
        codes = torch.randint(0, 16, (rows, depth), generator=generator)
        codes[3, 32:] = 0
        packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
        return packed, torch.tensor(E2M1)[codes]

    a, a_values = make_factor(left)
    b, b_values = make_factor(right)
    scales = [torch.randint(120, 132, (rows, depth // 32), generator=generator) for _ in range(2)]
    scales[0][3, 1] = 255  # not a number, nor is its product with zero
    powers = [torch.exp2(scale.float() - 127).repeat_interleave(32, 1) for scale in scales]
    powers[0][3, 32:] = torch.nan
    a_scale, b_scale = (scale.to(torch.uint8) for scale in scales)
    out = torch.empty(rows, columns)
    launch_checked(
        multiply_scaled, (1,), a, a_scale, b.T.contiguous(), b_scale, out,
        M=rows, N=columns, K=depth, A=left, B=right,
    )  # fmt: skip
    wanted = (a_values * powers[0]).double() @ (b_values * powers[1]).double().T
    assert out[3].isnan().all()
    assert torch.allclose(out.double(), wanted, rtol=1e-5, atol=1e-4, equal_nan=True)
