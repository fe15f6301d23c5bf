"""Runs one collected test through pytest's own hooks, and makes a `SideResult` of its phases."""

from __future__ import annotations

import contextlib
import errno
import re
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis.errors
import pytest

from harness.core import device, paths, preparation
from harness.core.outcomes import Outcome
from harness.guards import (
    hypothesis_adapter,
    not_applicable,
    pytest_adapter,
    replay,
    sides,
    suite_record,
)
from harness.sanitizer.device.record import RECORD
from harness.sanitizer.violations import EXCEPTIONS_MODULE
from harness.store.prove.values import SideResult

MAX_DETAIL_CHARACTERS = 16000  # the limit of a stored traceback
_NO_EVIDENCE = {Outcome.REFUSED, Outcome.OUT_OF_MEMORY, Outcome.LOST}
_NO_MEMORY_PHRASE = "can't allocate memory"  # of torch's allocator on a CPU
_FULL_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO}
_STAND_IN_PHRASE = "stand-in"  # in each error of `releases/standins`
# Where the classes of objects come from that fixtures build with the attributes that guards need.
_FIXTURE_PACKAGES = {"types", "unittest", "fixtures", "suites", "sglang"}
_HIDDEN_FRAMES = re.compile(
    r"[/\\](_pytest|pluggy|hypothesis|harness[/\\](guards|workers|runs|sanitizer[/\\](check|watch)))[/\\]"
    r"|[/\\]triton[/\\](runtime|language)[/\\]"
)


class PhaseRecorder:
    """A plugin that records the reports of the running test's phases."""

    def __init__(self) -> None:
        self.phases: list[tuple[pytest.TestReport, BaseException | None]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        report = yield
        self.phases.append((report, call.excinfo.value if call.excinfo else None))
        return report


def run_protocol(
    item: pytest.Item, listener: PhaseRecorder, with_details: bool = True
) -> SideResult:
    """Set up, call and tear down a test, with all plugins.

    `with_details` adds traceback, example and replay command; a repeated failure needs none.
    """
    protocol = item.config.hook.pytest_runtest_protocol
    return _run_and_classify(
        item, listener, with_details, lambda: protocol(item=item, nextitem=None)
    )


def run_inside_protocol(item: pytest.Item, listener: PhaseRecorder) -> SideResult:
    """Run a test's phases once more, within pytest's own call for that test."""
    return _run_and_classify(item, listener, True, lambda: pytest_adapter.run_phases(item))


def _run_and_classify(
    item: pytest.Item, listener: PhaseRecorder, with_details: bool, run: Callable[[], object]
) -> SideResult:
    listener.phases.clear()
    before = Counter(RECORD.stand_ins)
    try:
        with (
            _record_thread_failures() as thread_failures,
            preparation.measure_preparations() as prepared,
        ):
            run()
    except BaseException as error:  # pytest does not catch `exit` and a keyboard interrupt
        return SideResult(
            "",
            Outcome.EXITED,
            headline=f"it ended the session: {type(error).__name__}: {error}",
            replay=replay.build_replay_command(item),
        )
    side = _make_result_from_phases(listener.phases, with_details)
    if thread_failures and side.outcome in _OUTCOMES_WITHOUT_FAILURE:
        side = _make_result_from_thread(*thread_failures[0])
    if side.outcome is not Outcome.PASSED and with_details:
        errors = [error for _, error in listener.phases if error is not None]
        example = replay.build_example_command(item, errors[0]) if errors else ""
        side.replay = example or replay.build_replay_command(item)
        side.blob = (
            hypothesis_adapter.extract_blob(errors[0]) if errors and hasattr(item, "obj") else ""
        )
    side.stand_ins = dict(RECORD.stand_ins - before)
    side.observed = "\n".join(
        str(value) for name, value in item.user_properties if name == OBSERVED
    )
    side.seconds = sum(report.duration for report, _ in listener.phases)
    side.compile_seconds = sum(prepared)
    return side


OBSERVED = "observed"  # the property by which a test records what a review compares
_OUTCOMES_WITHOUT_FAILURE = (Outcome.PASSED, Outcome.NA, Outcome.SKIPPED)


@contextlib.contextmanager
def _record_thread_failures() -> Iterator[list[tuple[str, BaseException]]]:
    """Record the exceptions that end threads during the block."""
    failures: list[tuple[str, BaseException]] = []
    usual = threading.excepthook

    def record_failure(arguments: threading.ExceptHookArgs) -> None:
        error = arguments.exc_value
        if error is not None and not isinstance(error, SystemExit):  # it ends its thread alone
            name = arguments.thread.name if arguments.thread is not None else "unknown"
            failures.append((name, error))
        usual(arguments)

    threading.excepthook = record_failure
    try:
        yield failures
    finally:
        threading.excepthook = usual


def _make_result_from_thread(name: str, error: BaseException) -> SideResult:
    """Make the result of a test that passes while one of its threads fails.

    pytest only warns of such a failure, so the guard would pass with the bug wherever it runs.
    """
    return SideResult(
        "",
        Outcome.ERROR,
        headline=f'in the thread "{name}": {summarize_error(error)}',
        detail=format_own_traceback(error)[-MAX_DETAIL_CHARACTERS:],
    )


def _make_result_from_phases(
    phases: list[tuple[pytest.TestReport, BaseException | None]], with_details: bool
) -> SideResult:
    """Make the result from the first failed phase, or else from the first skipped one."""
    for report, error in phases:
        if not report.failed:
            continue
        where = "" if report.when == "call" else f"in {report.when}: "
        if error is None:  # a plugin made the report
            outcome = Outcome.FAILED if report.when == "call" else Outcome.ERROR
            first = report.longreprtext.strip().partition("\n")[0]
            return SideResult(
                "",
                outcome,
                headline=where + first,
                detail=report.longreprtext[-MAX_DETAIL_CHARACTERS:],
            )
        outcome = _classify_error(error)
        if report.when != "call" and outcome not in _NO_EVIDENCE:
            outcome = Outcome.ERROR
        side = SideResult("", outcome, headline=where + summarize_error(error))
        if with_details:
            side.example = suite_record.extract_falsifying_example(
                "\n".join(getattr(error, "__notes__", ()))
            )
            side.detail = format_own_traceback(error)[-MAX_DETAIL_CHARACTERS:]
        return side
    for report, _ in phases:
        if report.skipped:
            return _make_result_from_skip(report)
    if not any(report.when == "call" for report, _ in phases):
        return SideResult("", Outcome.ERROR, headline="pytest never called it")
    return SideResult("", Outcome.PASSED)


def format_own_traceback(error: BaseException) -> str:
    """Format the traceback without the frames of pytest, Hypothesis and the harness.

    pytest's own traceback parses every source file in it, which takes longer than most tests.
    """
    formatted = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = formatted
    while part is not None:
        part.stack = traceback.StackSummary.from_list(
            [frame for frame in part.stack if not _HIDDEN_FRAMES.search(frame.filename)]
        )
        part = part.__cause__ or part.__context__
    text = "".join(formatted.format())
    # Shorten the paths of the project and the release.
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        text = text.replace(f'File "{folder}/', 'File "')
    return paths.shorten_release_paths(text)


def _make_result_from_skip(report: pytest.TestReport) -> SideResult:
    if hasattr(report, "wasxfail"):
        return SideResult(
            "", Outcome.SKIPPED, headline=f"it is expected to fail: {report.wasxfail}"
        )
    reason = not_applicable.read_skip_reason(report)
    away = not_applicable.parse_not_applicable(reason)
    if away is not None:
        return SideResult("", Outcome.NA, headline=away)
    return SideResult("", Outcome.SKIPPED, headline=f"it skips itself: {reason}")


def _classify_error(error: BaseException) -> Outcome:
    if is_cuda_error(error):
        return Outcome.CUDA_ERROR
    if isinstance(error, hypothesis.errors.Flaky):
        return Outcome.FLAKY
    if isinstance(error, sides.ExampleNotDrawn):
        return Outcome.UNDRAWN
    if isinstance(error, sides.FAILURES):
        return Outcome.ERROR if _is_assertion_of_harness(error) else Outcome.FAILED
    if _is_lack_of_memory(error):
        return Outcome.OUT_OF_MEMORY
    if isinstance(error, OSError) and error.errno in _FULL_MACHINE:
        return Outcome.LOST
    return Outcome.REFUSED if _is_refusal(error) else Outcome.ERROR


def _is_assertion_of_harness(error: BaseException) -> bool:
    """Return whether an assertion of our own code failed, which says nothing of SGLang.

    The reports of checked kernels are classes of our own, and evidence wherever they are raised.
    """
    if type(error) is not AssertionError or error.__traceback__ is None:
        return False
    *_, (innermost_frame, _) = traceback.walk_tb(error.__traceback__)
    file = Path(innermost_frame.f_code.co_filename)
    return file.is_relative_to(paths.HARNESS_FOLDER) and not file.is_relative_to(
        paths.CARRIED_FOLDER  # suites of a wheel
    )


def _is_lack_of_memory(error: BaseException) -> bool:
    is_full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return is_full or isinstance(error, MemoryError) or _NO_MEMORY_PHRASE in str(error)


def _is_refusal(error: BaseException) -> bool:
    """Return whether the harness could not follow the code, which says nothing of its result.

    So it is if the harness itself raised (the checker of kernels), if a stand-in was called, and if
    an object that a fixture built in part lacks an attribute.
    """
    if type(error).__module__.partition(".")[0] == "harness" or _STAND_IN_PHRASE in str(error):
        return True
    if not isinstance(error, AttributeError) or error.obj is None:
        return False
    return type(error.obj).__module__.partition(".")[0] in _FIXTURE_PACKAGES


def is_cuda_error(error: BaseException | None) -> bool:
    if device.has_gpu() and isinstance(error, RuntimeError) and "CUDA error" in str(error):
        return True
    violations = sys.modules.get(EXCEPTIONS_MODULE)
    if violations is None:  # no suite checks kernels
        return False
    return isinstance(error, violations.CudaError | violations.DeviceLost)


def summarize_error(error: BaseException) -> str:
    words = paths.shorten_release_paths(str(error))
    first = next((line.strip() for line in words.splitlines() if line.strip()), "")
    name = type(error).__name__
    if isinstance(error, pytest.FixtureLookupError):
        return error.msg or f"there is no fixture '{error.argname}'"
    plain = (*sides.FAILURES, sides.ExampleNotDrawn)
    return first if isinstance(error, plain) and first else f"{name}: {first}".strip(": ")
