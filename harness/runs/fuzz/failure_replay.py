"""A kept failure on any release: what its one example comes to there."""

from __future__ import annotations

import select
import shutil
import time

import msgspec

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError
from harness.runs.fuzz import failure_files
from harness.runs.fuzz.example_decoding import (
    SHAPE_MISMATCH,
    are_same_arguments,
    describe_changed_strategy,
)
from harness.runs.fuzz.messages import (
    ExampleNote,
    FailureRecord,
    FuzzTestsCollected,
    FuzzWorkerMessage,
    TimeSlice,
    TimeSliceEnded,
)
from harness.runs.fuzz.release_search import FuzzRequest, ReleaseSearch
from harness.store.prove.values import SideOutcome
from harness.workers.messages import StartFailure
from harness.workers.worker_process import START_TIMEOUT


class ReplayResult(msgspec.Struct):
    """What came of it."""

    release: str
    test: str
    fails: bool
    headline: str
    arguments: list[str]
    detail: str


def replay_failure(failure: FailureRecord, request: FuzzRequest) -> ReplayResult:
    """Run a failure's example once, on the one release that is asked for."""
    failure_files.locate_test_file(failure)
    (target,) = request.targets
    lane = ReleaseSearch(request, target, paths.state_folder() / "fuzz" / "replays" / target.name)
    try:
        lane.start()
        number = _find_test_number(lane, failure)
        assert lane.worker is not None
        lane.worker.send_request(_make_replay_slice(failure, number, request))
        (ended,) = [
            each
            for each in _wait_for_messages(lane, request.example_seconds + 60)
            if isinstance(each, TimeSliceEnded)
        ]
        note = lane.worker.read_note(ended.serial)
        found = lane.worker.read_failures(ended.serial)
        words = found[0].headline if found else ended.headline
    finally:
        lane.end()
        shutil.rmtree(lane.folder, ignore_errors=True)
    return _judge_replay(failure, target.name, ended, note, words)


def _find_test_number(lane: ReleaseSearch, failure: FailureRecord) -> int:
    for said in _wait_for_messages(lane, START_TIMEOUT):
        if isinstance(said, StartFailure):
            raise (UnfixError if said.is_usage_error else NotReadyError)(said.problem)
        if isinstance(said, FuzzTestsCollected):
            for test in said.tests:
                if test.name == failure.test:
                    if test.left_out:
                        raise UnfixError(
                            f"{test.name} cannot be replayed on SGLang {lane.target.name}: "
                            f"{test.left_out}"
                        )
                    return test.number
    raise UnfixError(f"pytest does not collect {failure.test} on SGLang {lane.target.name}")


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


def _wait_for_messages(lane: ReleaseSearch, seconds: float) -> list[FuzzWorkerMessage]:
    """What a worker says next; it has so long for it."""
    assert lane.worker is not None
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if not select.select([lane.worker.read_end], [], [], 0.5)[0]:
            continue
        said = lane.worker.receive_messages()
        if said is None:
            break
        if said:
            return said
    raise NotReadyError(f"SGLang {lane.target.name} said nothing: {lane.worker.read_log_tail()}")


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
    if note is None or note.examples == 0 or SHAPE_MISMATCH in ended.headline:
        if outcome is SideOutcome.ERROR and "DidNotReproduce" not in ended.headline:
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
