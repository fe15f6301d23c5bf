"""Each race that is planted is found, at its line, its block and its thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planted_faults import check_place, launch_fault
from ptx_kernels import pack_parameters

from harness.sanitizer.ptx.launch import ExecutorChecks
from harness.sanitizer.violations.exceptions import DataRace


@pytest.mark.parametrize(
    ("entry", "marker", "thread", "more"),
    [
        ("exchange", "write after other's read", (32, 0, 0), ()),
        ("reuse", "read of the next round", (32, 0, 0), (3,)),
        ("warp_exchange", "warp race", (1, 0, 0), ()),
    ],
)
def test_a_missing_synchronization_is_found(
    entry: str, marker: str, thread: tuple[int, int, int], more: tuple[int, ...]
) -> None:
    out = np.zeros(64, np.float32)
    options: dict[str, Any] = {"block": (64, 1, 1)}
    quiet = ExecutorChecks(uninitialized=False)
    parameters = pack_parameters(out, *more)
    launch_fault(f"{entry}_synchronized", parameters, {"out": out}, **options)
    with pytest.raises(DataRace, match=r"of block .0, 0, 0. ") as caught:
        launch_fault(f"{entry}_unsynchronized", parameters, {"out": out}, checks=quiet, **options)
    check_place(caught.value, marker, thread)
    off = ExecutorChecks(races=False, uninitialized=False)
    launch_fault(f"{entry}_unsynchronized", parameters, {"out": out}, checks=off, **options)


def test_two_threads_that_write_different_values_race() -> None:
    out = np.zeros(64, np.float32)
    launch_fault("threads_write_one", pack_parameters(out, 0), {"out": out})
    with pytest.raises(DataRace, match="write different values to out, index 0") as caught:
        launch_fault("threads_write_one", pack_parameters(out, 1), {"out": out})
    check_place(caught.value, "threads write", (1, 0, 0))


def test_two_threads_that_write_the_same_value_do_not_race() -> None:
    out = np.zeros(64, np.float32)
    launch_fault("threads_write_same", pack_parameters(out), {"out": out})


def test_a_store_beside_an_atomic_update_races() -> None:
    out = np.zeros(64, np.float32)
    with pytest.raises(DataRace, match="store and update atomically"):
        launch_fault("store_and_update", pack_parameters(out), {"out": out})
