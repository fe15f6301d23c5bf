"""A guard on one side of a toggle, and the verdict of `--teeth` over that side."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import hypothesis.errors
import pytest

from harness.fixes.matching.toggle_status import ToggleState
from harness.guards import cells, hypothesis_adapter, profiles, pytest_adapter, verdicts
from harness.guards.cells import GuardCell, Side
from harness.store.prove.values import CellVerdict, SideOutcome, SideResult

# A guard's reports of a bug: an assertion (also from a checked kernel), or `pytest.fail`.
FAILURES = (AssertionError, pytest.fail.Exception)
AttemptScope = Callable[[pytest.Function], contextlib.AbstractContextManager[None]]
# The part of a guard to repeat, from a runner.
ATTEMPT_SCOPE = pytest.StashKey[AttemptScope]()


class GuardNotProven(Exception):
    """An error for a side that proves nothing; its message begins with the verdict."""


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


def run_side(cell: GuardCell, item: pytest.Function) -> Generator[None, Any, Any]:
    """Run the guard on one side of the toggle, and record how often the toggled code ran."""
    with cells.apply_cell(cell) as toggled, _choose_attempt_scope(cell, item):
        try:
            with raise_lost_device_as_failure():
                return (yield)
        finally:
            item.user_properties.append(("reach", toggled.reach))


def _choose_attempt_scope(
    cell: GuardCell, item: pytest.Function
) -> contextlib.AbstractContextManager[None]:
    """Return the runner's choice, or a longer search on the reverted side."""
    make_scope = item.config.stash.get(ATTEMPT_SCOPE, None)
    if make_scope is not None:
        return make_scope(item)
    buggy = cell.side is Side.BUGGY
    buggy |= cell.side is Side.AS_IS and cell.finding.state is ToggleState.BUGGY
    return profiles.extend_search(item.obj) if buggy else contextlib.nullcontext()


def run_judged_side(cell: GuardCell, item: pytest.Function) -> Generator[None, Any, Any]:
    """Run one side, and pass if it ends as in a proof: the reverted side has to fail."""
    failure: BaseException | None = None
    result = None
    try:
        result = yield from run_side(cell, item)
    except FAILURES as error:
        if cell.side is Side.FIXED:
            raise
        _check_example_passes_fixed(cell, item, error)
        failure = error
    outcome = SideOutcome.FAILED if failure else SideOutcome.PASSED
    reach = int(str(dict(item.user_properties)["reach"]))
    verdict, why = verdicts.judge_one_side(SideResult(cell.side.value, outcome, reach=reach))
    if verdict is not CellVerdict.PROVEN:
        raise GuardNotProven(f"{cell.toggle.id} is {verdict.value}: {why}")
    if failure is not None:
        item.user_properties.append(("counterexample", str(failure)))
        item.user_properties.append(("notes", "\n".join(getattr(failure, "__notes__", ()))))
    return result


def _check_example_passes_fixed(
    cell: GuardCell, item: pytest.Function, error: BaseException
) -> None:
    """Check that the example that fails with the fix reverted passes with it applied."""
    blob = hypothesis_adapter.extract_blob(error)
    if not blob or type(error).__name__ == "CudaError":
        return
    try:
        with (
            cells.apply_cell(GuardCell(cell.finding, Side.FIXED)),
            raise_lost_device_as_failure(),
            hypothesis_adapter.pin_example(item.obj, blob),
        ):
            item.obj(**pytest_adapter.get_own_arguments(item))
    except hypothesis.errors.DidNotReproduce:
        return
    except FAILURES as other:
        reason = f"the same example fails with the fix applied: {other}"
        raise GuardNotProven(f"{cell.toggle.id} is flaky: {reason}") from error
