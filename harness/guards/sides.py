"""A guard on one side of a toggle, and what that comes to."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import hypothesis.errors
import pytest

from harness.fixes.matching.toggle_status import ToggleState
from harness.guards import cells, profiles, replay
from harness.guards.cells import GuardCell, Side

# How a guard says no: an assertion (a report of a checked kernel is one), or `pytest.fail`.
FAILURES = (AssertionError, pytest.fail.Exception)
AttemptScope = Callable[[pytest.Function], contextlib.AbstractContextManager[None]]
# Set by a runner that runs something of a guard again: what of it.
ATTEMPT_SCOPE = pytest.StashKey[AttemptScope]()


class ToothlessGuard(Exception):
    """A guard that passes with its bug in, or whose toggled code never ran."""


class InsensitiveGuard(Exception):
    """A guard that fails whether its bug is in or not: the longer look found something else."""


@contextlib.contextmanager
def raise_lost_device_as_failure() -> Iterator[None]:
    """A lost device is this guard's failure; whatever runs after it here fails at once."""
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


def run_side(cell: GuardCell, item: pytest.Function) -> Generator[None, Any, Any]:
    """The guard with the release on one side of the toggle, and how often the toggled code ran."""
    with cells.apply_cell(cell) as toggled, _choose_attempt_scope(cell, item):
        try:
            with raise_lost_device_as_failure():
                return (yield)
        finally:
            item.user_properties.append(("reach", toggled.reach))


@contextlib.contextmanager
def _choose_attempt_scope(cell: GuardCell, item: pytest.Function) -> Iterator[None]:
    """How far a side is looked at: longer where the bug is in, unless somebody says how."""
    wanted = item.config.stash.get(ATTEMPT_SCOPE, None)
    buggy = cell.side is Side.BUGGY
    buggy |= cell.side is Side.AS_IS and cell.finding.state is ToggleState.BUGGY
    if wanted is not None:
        look = wanted(item)
    else:
        look = profiles.extend_search(item.obj) if buggy else contextlib.nullcontext()
    with look:
        yield


def _check_example_passes_fixed(
    cell: GuardCell, item: pytest.Function, error: BaseException
) -> None:
    """The example that failed with the fix out must pass with it in."""
    blob = replay.extract_blob(error)
    if not blob or type(error).__name__ == "CudaError":
        return
    given = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    fixed = GuardCell(cell.finding, Side.FIXED)
    try:
        with (
            cells.apply_cell(fixed),
            raise_lost_device_as_failure(),
            replay.pin_example(item.obj, blob),
        ):
            item.obj(**given)
    except hypothesis.errors.DidNotReproduce:
        return
    except FAILURES as other:
        raise InsensitiveGuard(f"the same example fails with the fix in: {other}") from error


def run_judged_side(cell: GuardCell, item: pytest.Function) -> Generator[None, Any, Any]:
    """The same turned round: on the buggy side a guard passes by failing."""
    failure: BaseException | None = None
    result = None
    try:
        result = yield from run_side(cell, item)
    except FAILURES as error:
        if cell.side is Side.FIXED:
            raise
        _check_example_passes_fixed(cell, item, error)
        failure = error
    reach = dict(item.user_properties)["reach"]
    if cell.side is Side.BUGGY:
        if failure is None:
            raise ToothlessGuard(f"{cell.toggle.id} is out, its code ran {reach} times: it passes")
        item.user_properties.append(("counterexample", str(failure)))
        item.user_properties.append(("notes", "\n".join(getattr(failure, "__notes__", ()))))
    if not reach:
        raise ToothlessGuard(f"the code of {cell.toggle.id} never ran: the result says nothing")
    return result
