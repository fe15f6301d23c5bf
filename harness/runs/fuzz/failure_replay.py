"""The replay of a stored failure's one example on a release."""

from __future__ import annotations

import shutil
import time

import msgspec

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError
from harness.guards.hypothesis_adapter import SHAPE_MISMATCH_PHRASE
from harness.runs.fuzz import failure_files
from harness.runs.fuzz.failure_files import are_same_arguments, describe_changed_strategy
from harness.runs.fuzz.messages import (
    ExampleNote,
    FuzzTestsCollected,
    FuzzWorkerMessage,
    TimeSlice,
    TimeSliceEnded,
)
from harness.runs.fuzz.release_search import FuzzRequest, ReleaseSearch
from harness.store.fuzz.values import FailureRecord
from harness.store.prove.values import SideOutcome
from harness.workers.messages import StartFailure
from harness.workers.worker_process import START_TIMEOUT


class ReplayResult(msgspec.Struct):
    """The outcome of the example on one release."""

    release: str
    test: str
    fails: bool
    headline: str
    arguments: list[str]
    detail: str


def replay_failure(failure: FailureRecord, request: FuzzRequest) -> ReplayResult:
    """Run a failure's example once, on the request's one release."""
    failure_files.locate_test_file(failure)
    (target,) = request.targets
    folder = paths.state_folder() / "fuzz" / "replays" / target.name
    release = ReleaseSearch(request, target, folder)
    try:
        release.start()
        assert release.worker is not None
        number = _find_test_number(_wait_for_message(release, START_TIMEOUT), failure, target.name)
        release.worker.send_request(_make_replay_slice(failure, number, request))
        ended = _wait_for_message(release, request.example_seconds + 60)
        assert isinstance(ended, TimeSliceEnded)
        note = release.worker.get_files(ended.serial).read_note()
        failures = release.worker.get_files(ended.serial).read_failures()
        headline = failures[0].headline if failures else ended.headline
    finally:
        release.end()
        shutil.rmtree(folder, ignore_errors=True)
    return _judge_replay(failure, target.name, ended, note, headline)


def _wait_for_message(release: ReleaseSearch, seconds: float) -> FuzzWorkerMessage:
    worker = release.worker
    assert worker is not None
    age = time.monotonic() - worker.started
    message: FuzzWorkerMessage | None = worker.wait_for_first_message(age + seconds)
    if message is None:
        name = release.target.name
        raise NotReadyError(f"SGLang {name} gave no answer: {worker.read_log_tail()}")
    return message


def _find_test_number(message: FuzzWorkerMessage, failure: FailureRecord, release: str) -> int:
    if isinstance(message, StartFailure):
        raise (UnfixError if message.is_usage_error else NotReadyError)(message.problem)
    assert isinstance(message, FuzzTestsCollected)
    test = next((test for test in message.tests if test.name == failure.test), None)
    if test is None:
        raise UnfixError(f"pytest does not collect {failure.test} on SGLang {release}")
    if test.left_out:
        reason = f"cannot be replayed on SGLang {release}: {test.left_out}"
        raise UnfixError(f"{test.name} {reason}")
    return test.number


def _make_replay_slice(failure: FailureRecord, number: int, request: FuzzRequest) -> TimeSlice:
    now = time.monotonic()
    return TimeSlice(
        test_number=number,
        serial=1,
        seed=failure.seed,
        memory=request.memory,
        generate_until=now + request.example_seconds,
        shrink_until=now + request.example_seconds,
        end_after=request.example_seconds,
        replay_blob=failure.blob,
    )


def _judge_replay(
    failure: FailureRecord,
    release: str,
    ended: TimeSliceEnded,
    note: ExampleNote | None,
    headline: str,
) -> ReplayResult:
    outcome = SideOutcome(ended.outcome)
    if outcome in (SideOutcome.NA, SideOutcome.SKIPPED):
        raise UnfixError(f"{failure.test} says of SGLang {release}: {ended.headline}")
    if note is None or note.examples == 0 or SHAPE_MISMATCH_PHRASE in ended.headline:
        is_error = outcome in (SideOutcome.ERROR, SideOutcome.REFUSED)
        if is_error and "DidNotReproduce" not in ended.headline:
            raise UnfixError(f"{failure.test} cannot be run on SGLang {release}: {ended.headline}")
        raise UnfixError(describe_changed_strategy(failure, []))
    if not are_same_arguments(note.arguments, failure.arguments):
        raise UnfixError(describe_changed_strategy(failure, note.arguments))
    fails = not ended.headline.startswith("DidNotReproduce")
    return ReplayResult(
        release=release,
        test=failure.test,
        fails=fails,
        headline=headline if fails else "passes",
        arguments=note.arguments,
        detail=ended.detail if fails else "",
    )
