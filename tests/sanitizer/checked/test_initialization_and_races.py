"""Kernels under check: uninitialized memory, and races between programs or lanes."""

from __future__ import annotations

import pytest
import torch
from checks import check_on_cpu, make_numbers
from kernels_to_check import (
    copy,
    count_programs,
    lanes,
    read_beside,
    same_place,
    waiting,
)

from harness.checking import (
    DataRace,
    OutOfBounds,
    UncheckableKernel,
    UninitializedMemory,
)

# Uninitialized memory


def test_elements_that_were_never_written_are_reported() -> None:
    with check_on_cpu() as session:
        target = torch.empty(24, dtype=torch.int32, device="cuda")
        copy[(2,)](make_numbers(24), target, 24, 0, BLOCK=8)
        session.assert_written(target, slice(0, 16))
        with pytest.raises(
            UninitializedMemory, match=r"8 of 24 elements were never written: index \[16\]"
        ):
            session.assert_written(target)
        target[16:] = 0
        session.assert_written(target)


def test_a_tensor_can_be_marked_uninitialized_again() -> None:
    with check_on_cpu() as session:
        target = make_numbers(8)
        with pytest.raises(ValueError, match="not uninitialized in this session"):
            session.assert_written(target)
        session.mark_uninitialized(target)
        assert target.min() < -1
        with pytest.raises(UninitializedMemory):
            session.assert_written(target)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_memory_of_any_shape_can_be_uninitialized(shape: tuple[int, ...]) -> None:
    with check_on_cpu() as session:
        tensor = torch.empty(shape, dtype=torch.int64)
        assert tensor.shape == shape
        if tensor.numel():
            with pytest.raises(UninitializedMemory):
                session.assert_written(tensor)


# Races


def test_a_race_among_dummy_requests_is_ignored_while_a_session_says_so() -> None:
    with check_on_cpu() as session:
        with session.ignore_races():
            target = make_numbers(1)
            same_place[(3,)](target, 7, STEP=1)
            assert target.item() == 9  # all three programs ran
            with pytest.raises(OutOfBounds):
                copy[(4,)](make_numbers(24), make_numbers(24), 32, 0, BLOCK=8)
        session.discard_errors()
        with pytest.raises(DataRace):
            same_place[(3,)](make_numbers(1), 7, STEP=1)
        session.discard_errors()


def test_two_lanes_of_one_store_must_not_write_different_values() -> None:
    with check_on_cpu():
        lanes[(1,)](make_numbers(8), 1, N=8)
    with pytest.raises(DataRace, match="two lanes of program"), check_on_cpu():
        lanes[(1,)](make_numbers(8), 2, N=8)


def test_a_wait_for_a_later_program_is_refused() -> None:
    with pytest.raises(UncheckableKernel, match="waits for another program"), check_on_cpu():
        waiting[(2,)](torch.zeros(1, dtype=torch.int32))


def test_launches_and_atomics_do_not_race() -> None:
    target = torch.zeros(1, dtype=torch.int32)
    with check_on_cpu():
        for value in range(3):
            same_place[(1,)](target, value, STEP=1)
        count_programs[(5,)](target)
        read_beside[(2,)](make_numbers(2), make_numbers(2), 0)  # each program its own element
        read_beside[(1,)](make_numbers(2), make_numbers(2), 1)
    assert target.tolist() == [7]
