"""One collected test, run through pytest's own hooks, and what it said as a `Side`."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Generator
from typing import Any

import hypothesis.errors
import pytest

from harness import device
from harness.guards import absence, recording, replay, sides
from harness.store.prove.values import Outcome, Side

DETAIL = 16000  # characters kept of a traceback
_PASSES_ON = re.compile(
    r"[/\\](_pytest|pluggy|hypothesis|harness[/\\](guards|prove|checking))[/\\]"
    r"|[/\\]triton[/\\](runtime|language)[/\\]"
)


class Listener:
    """Remembers what the phases of the running test came to."""

    def __init__(self) -> None:
        self.phases: list[tuple[pytest.TestReport, BaseException | None]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        report = yield
        self.phases.append((report, call.excinfo.value if call.excinfo else None))
        return report


def run(item: pytest.Item, listener: Listener, at_length: bool = True) -> Side:
    """Set up, call and tear down, with whatever plugins have to say about it.

    How it failed is told `at_length` unless the same failure was told before.
    """
    listener.phases.clear()
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    except BaseException as error:  # pytest lets `exit` and a keyboard interrupt through
        return Side(
            "",
            Outcome.EXITED,
            headline=f"it ended the session: {type(error).__name__}: {error}",
            replay=replay.command(item),
        )
    side = _side(listener.phases, at_length)
    if side.outcome is not Outcome.PASSED and at_length:
        errors = [error for _, error in listener.phases if error is not None]
        example = replay.line(item, errors[0]) if errors else ""
        side.replay = example or replay.command(item)
        side.blob = replay.blob(errors[0]) if errors and hasattr(item, "obj") else ""
    side.seconds = sum(report.duration for report, _ in listener.phases)
    return side


def _side(phases: list[tuple[pytest.TestReport, BaseException | None]], at_length: bool) -> Side:
    """The first phase that failed says what the test came to, and else one that was skipped."""
    for report, error in phases:
        if not report.failed:
            continue
        where = "" if report.when == "call" else f"in {report.when}: "
        if error is None:  # a plugin's own judgement
            outcome = Outcome.FAILED if report.when == "call" else Outcome.ERROR
            first = report.longreprtext.strip().partition("\n")[0]
            return Side("", outcome, headline=where + first, detail=report.longreprtext[-DETAIL:])
        outcome = _kind(error) if report.when == "call" else Outcome.ERROR
        side = Side("", outcome, headline=where + headline(error))
        if at_length:
            side.example = recording.falsifying("\n".join(getattr(error, "__notes__", ())))
            side.detail = traceback_of(error)[-DETAIL:]
        return side
    for report, _ in phases:
        if report.skipped:
            return _skipped(report)
    if not any(report.when == "call" for report, _ in phases):
        return Side("", Outcome.ERROR, headline="pytest never called it")
    return Side("", Outcome.PASSED)


def traceback_of(error: BaseException) -> str:
    """The traceback without the frames of those who only passed the call on.

    pytest's own is made by parsing every source file on the way, which takes longer than most
    tests.
    """
    told = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = told
    while part is not None:
        part.stack = traceback.StackSummary.from_list(
            [frame for frame in part.stack if not _PASSES_ON.search(frame.filename)]
        )
        part = part.__cause__ or part.__context__
    text = "".join(told.format())
    # Where the project and the release lie is no news.
    for place in sorted(filter(None, sys.path), key=len, reverse=True):
        text = text.replace(f'File "{place}/', 'File "')
    return text


def _skipped(report: pytest.TestReport) -> Side:
    if hasattr(report, "wasxfail"):
        return Side("", Outcome.SKIPPED, headline=f"it is expected to fail: {report.wasxfail}")
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    reason = reason.removeprefix("Skipped: ")
    if reason.startswith(absence.PREFIX):
        return Side("", Outcome.NA, headline=reason.removeprefix(absence.PREFIX))
    return Side("", Outcome.SKIPPED, headline=f"it skips itself: {reason}")


def _kind(error: BaseException) -> Outcome:
    if is_cuda(error):
        return Outcome.CUDA_ERROR
    if isinstance(error, hypothesis.errors.Flaky):
        return Outcome.FLAKY
    return Outcome.FAILED if isinstance(error, sides.FAILURES) else Outcome.ERROR


def is_cuda(error: BaseException | None) -> bool:
    if device.get() != "cpu" and isinstance(error, RuntimeError) and "CUDA error" in str(error):
        return True
    violations = sys.modules.get("harness.checking.violations")
    if violations is None:  # the suites never asked for a check
        return False
    return isinstance(error, violations.CudaError | violations.LostDevice)


def headline(error: BaseException) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    name = type(error).__name__
    if isinstance(error, pytest.FixtureLookupError):
        return error.msg or f"there is no fixture '{error.argname}'"
    plain = (*sides.FAILURES, sides.Insensitive)
    return first if isinstance(error, plain) and first else f"{name}: {first}".strip(": ")
