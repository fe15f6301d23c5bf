"""The replay of a stored failure's one example on a release."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import msgspec

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError
from harness.core.outcomes import Outcome
from harness.guards.hypothesis_adapter import SHAPE_MISMATCH_PHRASE
from harness.runs.fuzz import failure_files
from harness.runs.fuzz.failure_files import are_same_arguments, describe_changed_strategy
from harness.runs.fuzz.fuzz_schedule import FuzzTestState
from harness.runs.fuzz.messages import (
    ExampleNote,
    FuzzTask,
    FuzzTestsCollected,
    FuzzWorkerMessage,
    TimeSlice,
    TimeSliceEnded,
)
from harness.runs.fuzz.release_search import FuzzPool, FuzzRequest, RunningTimeSlice
from harness.store.fuzz.values import FailureRecord, FuzzTestResult
from harness.workers.engine import Assignment, Engine, WorkerEnd
from harness.workers.messages import StartFailure
from harness.workers.release_target import ReleaseTarget


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
    pool = _ReplayPool(request, target, folder, failure)
    try:
        Engine([pool], jobs=1).run()
        assert pool.result is not None
        return pool.result
    finally:
        pool.end_workers()
        shutil.rmtree(folder, ignore_errors=True)


class _ReplayPool(FuzzPool):
    """A release on which one slice runs: the example of a failure."""

    def __init__(
        self, request: FuzzRequest, target: ReleaseTarget, folder: Path, failure: FailureRecord
    ) -> None:
        super().__init__(request, target, folder)
        self.result: ReplayResult | None = None
        self._failure = failure

    def compute_limit(self, item: RunningTimeSlice) -> float:
        return self.request.example_seconds + 30

    def handle_message(self, worker: Any, message: FuzzWorkerMessage) -> None:
        if isinstance(message, StartFailure):
            raise (UnfixError if message.is_usage_error else NotReadyError)(message.problem)
        if isinstance(message, FuzzTestsCollected):
            self.accept_worker(worker)
            test = _find_test(message, self._failure, self.name)
            state = FuzzTestState(test, FuzzTestResult(test.name, self.name))
            time_slice = _make_replay_slice(self._failure, test.number, self.request)
            self.waiting.append(RunningTimeSlice(state, time_slice))
            return
        files = self.get_files(self.finish(message.serial))
        failures = files.read_failures()
        headline = failures[0].headline if failures else message.headline
        self.result = _judge_replay(self._failure, self.name, message, files.read_note(), headline)

    def record_loss(self, lost: Assignment[RunningTimeSlice], end: WorkerEnd) -> None:
        raise NotReadyError(f"SGLang {self.name} gave no answer: {end.log}")


def _find_test(message: FuzzTestsCollected, failure: FailureRecord, release: str) -> FuzzTask:
    test = next((test for test in message.tests if test.name == failure.test), None)
    if test is None:
        raise UnfixError(f"pytest does not collect {failure.test} on SGLang {release}")
    if test.left_out:
        reason = f"cannot be replayed on SGLang {release}: {test.left_out}"
        raise UnfixError(f"{test.name} {reason}")
    return test


def _make_replay_slice(failure: FailureRecord, number: int, request: FuzzRequest) -> TimeSlice:
    now = time.monotonic()
    return TimeSlice(
        test_number=number,
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
    outcome = Outcome(ended.outcome)
    if outcome in (Outcome.NA, Outcome.SKIPPED):
        raise UnfixError(f"{failure.test} says of SGLang {release}: {ended.headline}")
    if note is None or note.examples == 0 or SHAPE_MISMATCH_PHRASE in ended.headline:
        is_error = outcome in (Outcome.ERROR, Outcome.REFUSED)
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
