"""Asynchronous copies: a read before its wait, or without a barrier behind it, is a report."""

from __future__ import annotations

import numpy as np
import pytest
from planted_faults import check_place
from ptx_kernels import pack_parameters, read_compiled, run_text

from harness.sanitizer.ptx.launch import ExecutorChecks
from harness.sanitizer.violations.exceptions import DataRace

SOURCE, TEXT = read_compiled("copies")
ROUNDS = 4


def run_copies(entry: str, threads: int, races: bool = True) -> np.ndarray:
    values = np.arange(1, 64 * ROUNDS + 1, dtype=np.int32)
    out = np.zeros(64 * ROUNDS, np.int32)
    rounds = [ROUNDS] if entry in ("stages", "waits_too_little") else []
    run_text(
        TEXT,
        pack_parameters(values, out, *rounds),
        {"in": values, "out": out},
        entry=entry,
        block=(threads, 1, 1),
        checks=ExecutorChecks(races=races),
    )
    return out


@pytest.mark.parametrize(
    ("entry", "threads", "wanted"),
    [
        ("own_read_waits", 32, list(range(1, 33))),
        ("waits_by_mbarrier", 64, list(range(64, 0, -1))),
        ("stages", 64, [k * 64 + 64 - i for k in range(ROUNDS) for i in range(64)]),
    ],
)
def test_copies_that_are_waited_for_are_read(entry: str, threads: int, wanted: list[int]) -> None:
    out = run_copies(entry, threads)
    assert out[: len(wanted)].tolist() == wanted


@pytest.mark.parametrize(
    ("entry", "threads", "marker", "thread", "words"),
    [
        (
            "wait_is_missing", 32, "wait", (0, 0, 0),
            "asynchronous copy of thread (31, 0, 0) has not been waited for",
        ),
        (
            "commit_is_missing", 32, "commit", (0, 0, 0),
            "asynchronous copy of thread (31, 0, 0) has not been waited for",
        ),
        (
            "barrier_is_missing", 64, "barrier", (32, 0, 0),
            "no barrier follows the wait of thread (0, 0, 0)",
        ),
        (
            "waits_too_little", 64, "stage", (0, 0, 0),
            "asynchronous copy of thread (63, 0, 0) has not been waited for",
        ),
    ],
)  # fmt: skip
def test_a_read_that_may_come_before_its_copy_is_a_report(
    entry: str, threads: int, marker: str, thread: tuple[int, int, int], words: str
) -> None:
    with pytest.raises(DataRace) as caught:
        run_copies(entry, threads)
    assert words in str(caught.value)
    check_place(caught.value, marker, thread, source=SOURCE)


def test_without_the_check_of_races_copies_are_not_checked() -> None:
    assert run_copies("wait_is_missing", 32, races=False)[:32].tolist() == list(range(32, 0, -1))
