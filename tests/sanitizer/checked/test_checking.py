"""Kernels under check: each kind of violation is reported with its details; right accesses pass."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest
import torch
from checks import check_on_cpu, make_numbers
from kernels_to_check import (
    at_product,
    broadcast_product,
    by_block,
    by_row,
    choose_pointer,
    copy,
    masked_by_number,
    masked_product,
    narrow_index,
    outer,
    overflows_twice,
    pack_index,
    run_assembly,
    store_by_descriptor,
    sum_index,
    through_a_descriptor,
    through_loop,
    through_table,
    transpose_pointers,
    value_overflows,
    wide_product,
)
from triton.tools.tensor_descriptor import TensorDescriptor

from harness import checking
from harness.checking import (
    AccessRuleViolation,
    IntegerOverflow,
    OutOfBounds,
    UncheckableKernel,
)

# Bounds


def test_a_read_past_the_end_is_reported_with_index_line_program_and_lanes() -> None:
    with pytest.raises(OutOfBounds) as caught, check_on_cpu():
        copy[(3,)](make_numbers(20), make_numbers(24), 24, 0, BLOCK=8)
    message = str(caught.value)
    assert (
        "copy read 4 bytes past the end of source (its index 20, and it is int32 [20])" in message
    )
    assert "kernels_to_check.py:" in message
    assert "value = tl.load(source + at + shift, mask=at < count)" in message
    assert "program (2, 0, 0)" in message
    assert "4 of 8 active lanes" in message
    assert "nearest tensor: source, which ends 0 bytes before" in message


def test_a_tensor_of_torch_empty_has_its_arguments_name_as_the_nearest() -> None:
    def copy_into_empty_tensor() -> None:
        with check_on_cpu():
            copy[(3,)](make_numbers(24), torch.empty(20, dtype=torch.int32), 24, 0, BLOCK=8)

    with pytest.raises(OutOfBounds) as caught:
        copy_into_empty_tensor()
    assert "copy wrote 4 bytes past the end of target (its index 20" in str(caught.value)
    assert "nearest tensor: target, which ends 0 bytes before" in str(caught.value)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (lambda: outer[(1,)](make_numbers(4), make_numbers(1), 4), r"outer \(in inner\) read"),
        (lambda: by_block[(1,)](make_numbers(16), make_numbers(16), 2, BLOCK=16), "past the end"),
        (lambda: store_by_descriptor[(1,)](make_numbers(64)[:16], 2, BLOCK=16), "end of target"),
        (lambda: transpose_pointers[(1,)](make_numbers(64)[:8], N=4), "past the end of target"),
        (
            lambda: through_a_descriptor[(2,)](
                TensorDescriptor(torch.zeros(6, 8), [8, 8], [8, 1], [4, 8]), torch.zeros(2)
            ),
            r"rows .*its index 48",
        ),
    ],
)
def test_an_access_out_of_bounds_is_reported_whatever_its_pointer(launch: Any, words: str) -> None:
    with pytest.raises(OutOfBounds, match=words), check_on_cpu():
        launch()


def test_masked_lanes_may_point_anywhere() -> None:
    target = make_numbers(20)
    with check_on_cpu():
        copy[(3,)](make_numbers(20) + 5, target, 20, 0, BLOCK=8)
    assert target.tolist() == list(range(5, 25))


def test_memory_past_a_view_is_named_as_its_storage() -> None:
    both = make_numbers(40)
    with pytest.raises(OutOfBounds) as caught, check_on_cpu():
        copy[(3,)](make_numbers(24), both[:20], 24, 0, BLOCK=8)
    assert "wrote 4 bytes past the end of target" in str(caught.value)
    assert "still inside the storage that this tensor is a view of" in str(caught.value)


def test_a_loaded_pointer_must_point_into_a_registered_tensor() -> None:
    pool = make_numbers(4)
    table = torch.tensor([pool.data_ptr()])
    with check_on_cpu() as session:
        with pytest.raises(OutOfBounds, match="in no tensor that this launch was given"):
            through_table[(1,)](table, make_numbers(1))
        session.discard_errors()
        session.register_tensor(pool, "the pool")
        target = make_numbers(1)
        through_table[(1,)](table, target)
        assert target.tolist() == [1]


def test_a_freed_tensor_is_named() -> None:
    with check_on_cpu() as session:
        pool = make_numbers(1 << 20)
        session.register_tensor(pool, "the pool")
        table = torch.tensor([pool.data_ptr()])
        del pool
        gc.collect()
        with pytest.raises(OutOfBounds, match="memory of the pool, which was freed"):
            through_table[(1,)](table, make_numbers(1))
        session.discard_errors()


def test_descriptors_are_followed() -> None:
    target = torch.zeros(16, dtype=torch.int32)
    with check_on_cpu():
        by_block[(1,)](make_numbers(32), target, 2, BLOCK=16)
        assert target.tolist() == list(range(16, 47, 2))


def test_pointers_of_several_tensors_may_mix() -> None:
    for which in range(3):
        with check_on_cpu():
            choose_pointer[(1,)](
                make_numbers(1) + 5, make_numbers(1) + 6, make_numbers(1) + 7, which
            )


def test_an_error_that_the_code_under_test_catches_is_raised_at_the_end() -> None:
    def falls_back() -> None:
        with check_on_cpu(), contextlib.suppress(AssertionError):
            copy[(3,)](make_numbers(20), make_numbers(24), 24, 0, BLOCK=8)

    with pytest.raises(OutOfBounds):
        falls_back()


# Access rules


def test_a_rule_for_an_argument_gets_the_launch_and_ends_with_it() -> None:
    with check_on_cpu() as session:
        session.allow_argument(
            "copy", "source", read=lambda launch, x, y, z: slice(0, launch.arguments["count"] - 1)
        )
        with pytest.raises(AccessRuleViolation, match=r"copy read source\[7\]"):
            copy[(1,)](make_numbers(8), make_numbers(8), 8, 0, BLOCK=8)
        session.discard_errors()
        outer[(1,)](make_numbers(8), make_numbers(1), 7)


def test_a_rule_leaves_other_tensors_of_the_storage_alone() -> None:
    both = torch.zeros((2, 8), dtype=torch.int32)
    with check_on_cpu() as session:
        session.allow(both[0], write=lambda x, y, z: None)
        copy[(1,)](make_numbers(8), both[1], 8, 0, BLOCK=8)
        session.allow_argument("copy", "source", read=lambda launch, x, y, z: ...)
        session.allow_argument("copy", "target", write=lambda launch, x, y, z: ...)
        copy[(1,)](both[0], both[1], 8, 0, BLOCK=8)


def test_a_rule_for_an_unknown_argument_is_an_error() -> None:
    with check_on_cpu() as session:
        session.allow_argument("copy", "sauce", read=lambda launch, x, y, z: None)
        with pytest.raises(ValueError, match="copy has no argument sauce: source, target"):
            copy[(1,)](make_numbers(8), make_numbers(8), 8, 0, BLOCK=8)


# Integer overflow


@pytest.mark.parametrize(
    ("launch", "operands"),
    [
        (lambda t: at_product[(1,)](t, 3, 2**30), "3 * 1073741824 became -1073741824"),
        (lambda t: through_loop[(1,)](t, 3, STRIDE=2**30), "3 * 1073741824"),
        (
            lambda t: narrow_index[(1,)](t, torch.tensor([2**32 + 1])),
            "4294967297 narrowed to int32",
        ),
        (
            lambda t: sum_index[(1,)](t, torch.full((4,), 2**30, dtype=torch.int32), N=4),
            "a sum of 4294967296 became 0",
        ),
        (
            lambda t: broadcast_product[(1,)](t, torch.tensor([0, 6]).int(), 2**30, N=2),
            "6 * 1073741824 became -2147483648",
        ),
    ],
)
def test_an_overflow_is_reported_where_it_happens(launch: Any, operands: str) -> None:
    with pytest.raises(IntegerOverflow) as caught, check_on_cpu():
        launch(checking.virtual_zeros((2**33,), torch.int32))
    assert operands in str(caught.value)
    assert "kernels_to_check.py:" in str(caught.value)


def test_an_overflow_in_a_masked_lane_does_not_hide_a_later_one() -> None:
    rows = torch.tensor([3, 1], dtype=torch.int32)
    with pytest.raises(IntegerOverflow, match=r"1073741824 \+ 1073741824"), check_on_cpu():
        overflows_twice[(1,)](checking.virtual_zeros((2**32,), torch.int32), rows, 2**30, N=2)


def test_the_low_bits_of_a_packed_number_are_right() -> None:
    target = make_numbers(8)
    with check_on_cpu():
        pack_index[(1,)](target, 70000)
    assert target[3] == 1


def test_an_overflow_counts_only_in_an_address_that_is_used() -> None:
    target = make_numbers(4)
    with check_on_cpu():
        value_overflows[(1,)](target, 3, 2**30)
        masked_product[(1,)](target, 3, 2**30)
        wide = checking.virtual_zeros((2**32,), torch.int8)
        wide_product[(1,)](wide, 3, 2**30)
        assert wide[3 * 2**30] == 1
    assert target[0] == -(2**30)


# Sparse grids and virtual tensors


def test_named_programs_of_a_huge_grid_over_a_huge_tensor() -> None:
    rows = 2**31 - 1  # a card runs no more
    target = checking.virtual_zeros((rows, 4), torch.int8)
    with check_on_cpu() as session:
        session.run_only("by_row", [(0,), (rows - 1,)])
        by_row[(rows,)](target, 4)
        assert [launch.grid for launch in session.launches] == [(rows, 1, 1)]
        session.run_only("by_row", [(rows,)])
        with pytest.raises(ValueError, match="has no program"):
            by_row[(rows,)](target, 4)
    assert [int(target[row, 0]) for row in (0, 1, rows - 2, rows - 1)] == [1, 0, 0, 1]


def test_a_named_program_is_reported_by_its_place_in_the_grid() -> None:
    with check_on_cpu() as session:
        session.run_only("copy", [(1,), (2,)])
        with pytest.raises(OutOfBounds, match=r"program \(2, 0, 0\)"):
            copy[(3,)](make_numbers(20), make_numbers(24), 24, 0, BLOCK=8)
        session.discard_errors()


def test_a_virtual_tensor_takes_the_memory_that_is_touched() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    huge = checking.virtual_zeros((1 << 37,), torch.int8)
    huge[1 << 36] = 1
    assert resident() - before < 1 << 24


# Unsupported operations, assertions, descriptors


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (
            lambda: run_assembly[(1,)](make_numbers(1)),
            r"run_assembly: the checker cannot.*inline assembly",
        ),
    ],
)
def test_a_kernel_that_cannot_be_followed_is_refused_by_name(launch: Any, words: str) -> None:
    with pytest.raises(UncheckableKernel, match=words), check_on_cpu():
        launch()
    with pytest.raises(RuntimeError, match="error encountered during parsing"), check_on_cpu():
        masked_by_number[(1,)](make_numbers(8), make_numbers(8), N=8)
    assert not issubclass(UncheckableKernel, AssertionError)


@pytest.mark.parametrize(("padding", "beyond"), [("zero", 0.0), ("nan", float("nan"))])
def test_a_descriptor_of_the_host_is_its_tensor(padding: str, beyond: float) -> None:
    rows, sums = torch.arange(48.0).reshape(6, 8), torch.zeros(2)
    with check_on_cpu():
        through_a_descriptor[(2,)](TensorDescriptor.from_tensor(rows, [4, 8], padding), sums)
    expected = [sum(range(32)), sum(range(32, 48)) + 16 * beyond]
    assert sums.tolist() == pytest.approx(expected, nan_ok=True)
    assert torch.equal(rows, torch.arange(1.0, 49.0).reshape(6, 8))
