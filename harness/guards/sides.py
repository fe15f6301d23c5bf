"""A guard on one side of its toggle.

Invariant: whatever a guard can see of itself is the same on both sides: its name, its parameters,
its environment. A runner chooses the side of each run in `SIDE_ATTEMPT`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus
from harness.guards import cells, profiles
from harness.guards.cells import GuardCell, Side
from harness.patching.import_runs import RUNS
from harness.patching.live_engine import engine

# A guard's reports of a bug: an assertion (also from a checked kernel), or `pytest.fail`.
FAILURES = (AssertionError, pytest.fail.Exception)
AttemptScope = Callable[[pytest.Function], contextlib.AbstractContextManager[None]]


@dataclass
class SideAttempt:
    """One run of a guard on one side, as its runner chose it."""

    side: Side
    scope: AttemptScope | None = None  # the part of the guard to run; None: all of it
    reach: int = 0  # how often the toggled code has run


SIDE_ATTEMPT = pytest.StashKey[SideAttempt]()


class ExampleNotDrawn(Exception):
    """An error for a run of an example that the guard draws otherwise on this side."""


@contextlib.contextmanager
def choose_side(config: pytest.Config, attempt: SideAttempt) -> Iterator[None]:
    """Have guards run on this side during the block."""
    config.stash[SIDE_ATTEMPT] = attempt
    try:
        yield
    finally:
        del config.stash[SIDE_ATTEMPT]


@contextlib.contextmanager
def raise_lost_device_as_failure() -> Iterator[None]:
    """Report a lost device as this guard's failure; later guards of the process fail at once."""
    if "torch" not in sys.modules:
        yield
        return
    from harness.checking import CudaError, DeviceLost

    try:
        yield
    except DeviceLost as error:
        raise CudaError(
            f"{error}: the device is lost, run what follows in a fresh process"
        ) from error


def run_side(status: ToggleStatus, item: pytest.Function) -> Generator[None, Any, Any]:
    """Run the guard on the chosen side of the toggle."""
    attempt = item.config.stash[SIDE_ATTEMPT]
    cell = GuardCell(status, attempt.side)
    with (
        RUNS.run_test_of(str(item.path)),
        cells.apply_cell(cell) as toggled,
        _choose_scope(cell, attempt, item),
    ):
        try:
            with raise_lost_device_as_failure():
                return (yield)
        finally:
            if not toggled.reach and cells.lacks_definition(cell):
                engine.count_missing_code(cells.make_choice(cell))
            attempt.reach = toggled.reach


def _choose_scope(
    cell: GuardCell, attempt: SideAttempt, item: pytest.Function
) -> contextlib.AbstractContextManager[None]:
    """Return the runner's choice, or a longer search on the reverted side."""
    if attempt.scope is not None:
        return attempt.scope(item)
    buggy = cell.side is Side.BUGGY
    buggy |= cell.side is Side.AS_IS and cell.finding.state is ToggleState.BUGGY
    return profiles.extend_search(item.obj) if buggy else contextlib.nullcontext()
