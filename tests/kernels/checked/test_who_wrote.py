"""Kernels under check: reading what nobody wrote, and programs that are not sure to agree."""

from __future__ import annotations

import pytest
import torch
from checks import check, numbers
from kernels_to_check import (
    copy,
    counted,
    lanes,
    read_beside,
    same_place,
    stored_and_counted,
    waiting,
)

from harness.checking import (
    DataRace,
    UncheckableKernel,
    UninitializedMemory,
)

# What nobody wrote


def test_what_was_not_written_is_found() -> None:
    with check() as held:
        target = torch.empty(24, dtype=torch.int32, device="cuda")
        copy[(2,)](numbers(24), target, 24, 0, BLOCK=8)
        held.assert_written(target, slice(0, 16))
        with pytest.raises(
            UninitializedMemory, match=r"8 of 24 elements were never written: index \[16\]"
        ):
            held.assert_written(target)
        target[16:] = 0
        held.assert_written(target)


def test_reading_what_nobody_wrote_is_reported() -> None:
    with check() as held:
        source = torch.empty(24, dtype=torch.int32)
        source[:16] = 1
        copy[(2,)](source, numbers(24), 24, 0, BLOCK=8)
        with pytest.raises(
            UninitializedMemory, match=r"copy read uninitialized memory: source, index 16"
        ):
            copy[(3,)](source, numbers(24), 24, 0, BLOCK=8)
        held.discard_errors()


def test_a_buffer_can_be_declared_empty_again() -> None:
    with check() as held:
        target = numbers(8)
        with pytest.raises(ValueError, match="not uninitialized in this session"):
            held.assert_written(target)
        held.mark_uninitialized(target)
        assert target.min() < -1
        with pytest.raises(UninitializedMemory):
            held.assert_written(target)


# Races


def test_two_programs_must_not_disagree() -> None:
    told = r"programs \(0, 0, 0\) and \(1, 0, 0\) write different values to target, index 0"
    with check():
        same_place[(3,)](numbers(1), 7, STEP=0)
        same_place[(1,)](numbers(1), 8, STEP=0)
    with pytest.raises(DataRace, match=told), check():
        same_place[(3,)](numbers(1), 7, STEP=1)


def test_a_store_beside_an_atomic_is_a_race() -> None:
    for first in (0, 1):
        with pytest.raises(DataRace, match="store and update atomically target, index 0"), check():
            stored_and_counted[(2,)](numbers(1), first)


def test_two_lanes_of_one_store_must_not_disagree() -> None:
    with check():
        lanes[(1,)](numbers(8), 1, N=8)
    with pytest.raises(DataRace, match="two lanes of program"), check():
        lanes[(1,)](numbers(8), 2, N=8)


def test_one_program_must_not_read_what_another_writes() -> None:
    told = r"programs \(0, 0, 0\) and \(1, 0, 0\): the first {} shared, index 0"
    for step, words in ((1, "writes and the second reads"), (-1, "reads and the second writes")):
        with pytest.raises(DataRace, match=told.format(words)), check():
            read_beside[(2,)](numbers(2), numbers(2), step)
    with check():
        read_beside[(2,)](numbers(2), numbers(2), 0)
        read_beside[(1,)](numbers(2), numbers(2), 1)


def test_a_program_that_waits_for_a_later_one_is_refused() -> None:
    with pytest.raises(UncheckableKernel, match="waits for another program"), check():
        waiting[(2,)](torch.zeros(1, dtype=torch.int32))


def test_launches_and_atomics_do_not_race() -> None:
    target = torch.zeros(1, dtype=torch.int32)
    with check():
        for value in range(3):
            same_place[(1,)](target, value, STEP=1)
        counted[(5,)](target)
    assert target.tolist() == [7]
