"""One release of a run: its worker process, its tests, and their failures."""

from __future__ import annotations

import dataclasses
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core import device
from harness.core.outcomes import Outcome
from harness.runs.fuzz import example_corpus
from harness.runs.fuzz.fuzz_schedule import FuzzSchedule, FuzzTestState
from harness.runs.fuzz.messages import (
    CodeFile,
    ExampleNote,
    FuzzTestsCollected,
    FuzzWorkerMessage,
    FuzzWorkerSettings,
    TimeSlice,
    TimeSliceEnded,
)
from harness.runs.fuzz.slice_files import SliceFiles
from harness.store.fuzz.values import (
    FailureRecord,
    FileCoverage,
    FoundFailure,
    FuzzTestResult,
    RunFailure,
    ToggleDirections,
)
from harness.workers.engine import Assignment, WorkPool
from harness.workers.release_target import ReleaseTarget
from harness.workers.worker_process import WorkerProcess

SHRINK_SECONDS = 30.0  # seconds to shrink a failure in one slice
MAX_LOST_WORKERS = 3  # in a row, before the run gives up
MAX_SHRINK_ATTEMPTS = 2  # number of slices that shrink one failure
GRACE_SECONDS = 4.0  # seconds beyond the budget for running examples


@dataclass(frozen=True)
class FuzzRequest:
    """A requested run, with all options resolved."""

    targets: list[ReleaseTarget]
    pytest_arguments: list[str]  # the suites
    pytest_folder: Path  # the working folder of pytest
    under: ToggleDirections
    seconds: float
    jobs: int
    seed: int
    memory: int
    example_seconds: float  # the limit, beyond which an example hangs
    toggle_folders: list[Path] = field(default_factory=list)  # further toggles


@dataclass(eq=False)
class RunningTimeSlice:
    """A slice, from its request to its end."""

    test_state: FuzzTestState
    time_slice: TimeSlice
    hung_pid: int = 0  # of the process that hung in an example
    checked: KnownBugCheck | None = None  # a replay that decides whether a failure is known

    def is_hung(self, note: ExampleNote | None) -> bool:
        """Return whether the slice's process hung; a new one that repeats its examples did not."""
        return bool(self.hung_pid) and (note is None or note.pid == self.hung_pid)

    def make_failure_id(self, key: str) -> tuple[str, str]:
        """Return the test and the failure; a failure with a fix applied is another failure."""
        applied = f" | with {', '.join(self.time_slice.enable)}" if self.time_slice.enable else ""
        return self.test_state.task.name, key + applied


@dataclass(frozen=True)
class KnownBugCheck:
    """A failure whose example is replayed as it is, and then with the fixes of its guard.

    It is a known bug of the release if it fails again as it did, and passes with the fixes.
    """

    state: FuzzTestState
    failure_id: tuple[str, str]
    with_fixes: bool = False

    def was_expected(
        self,
        record: FailureRecord,
        ended: TimeSliceEnded,
        found: list[FoundFailure],
        hung: bool,
    ) -> bool:
        outcome = Outcome.HANG if hung else Outcome(ended.outcome)
        if self.with_fixes:
            passes = outcome is Outcome.PASSED or ended.headline.startswith("DidNotReproduce")
            return passes and not found
        return record.key in [one.key for one in found] or record.error == outcome.value


class FuzzWorkerProcess(WorkerProcess[FuzzWorkerMessage]):
    """A process that imports a release and forks slices, and the files that slices write."""

    module = "harness.runs.fuzz.worker"
    message_type = FuzzWorkerMessage

    def get_files(self, serial: int) -> SliceFiles:
        return SliceFiles(self.folder, serial)


class FuzzPool(WorkPool[RunningTimeSlice, FuzzWorkerMessage]):
    """The slices of tests of one release, in forks of one worker."""

    repeats_lost_items = False  # a slice's example that ended its worker is a failure

    def __init__(self, request: FuzzRequest, target: ReleaseTarget, folder: Path) -> None:
        super().__init__(target.name, request.jobs)
        self.request = request
        self.target = target
        self.folder = folder

    def start_worker(self) -> FuzzWorkerProcess:
        corpus = example_corpus.locate_corpus(self.target.name, self.request.under)
        example_corpus.prepare_corpus(corpus)
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = FuzzWorkerSettings(
            release=self.target.requested_as or self.target.name,
            pytest_arguments=["--profile", "nightly", *self.request.pytest_arguments],
            under=self.request.under,
            folder=tempfile.mkdtemp(dir=self.folder),
            corpus=str(corpus),
            device=self.target.device,
            shares_processes=device.shares_processes(self.target.device),
            jobs=self.request.jobs,
        )
        return FuzzWorkerProcess(
            self.target.python,
            settings,
            self.request.toggle_folders,
            self.request.pytest_folder,
            self.folder / "worker.log",
        )

    def send_item(self, assignment: Assignment[RunningTimeSlice]) -> None:
        time_slice = assignment.item.time_slice
        time_slice.serial = assignment.serial
        assignment.worker.send_request(time_slice)

    def get_files(self, assignment: Assignment[RunningTimeSlice]) -> SliceFiles:
        worker: FuzzWorkerProcess = assignment.worker
        return worker.get_files(assignment.serial)


class TimeBudget:
    """The seconds of a run, which its releases share one after another."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.deadline = 0.0  # the budget begins once the first release is imported
        self.searches: list[Any] = []

    def is_turn_of(self, search: object) -> bool:
        """Return whether a release may search: all before it have ended."""
        return search is next(each for each in self.searches if not each.has_ended)

    def take_share(self, now: float) -> float:
        """Return the seconds of the next release's search."""
        self.deadline = self.deadline or now + self.seconds
        searches_left = sum(not each.has_ended for each in self.searches)
        return max(0.0, self.deadline - now) / searches_left


class ReleaseSearch(FuzzPool):
    """The slices of one release: which test is next, and what is done with what it found."""

    def __init__(
        self, request: FuzzRequest, target: ReleaseTarget, folder: Path, budget: TimeBudget
    ) -> None:
        super().__init__(request, target, folder)
        self.budget = budget
        self.random = random.Random(f"{request.seed} {target.name}")
        self.schedule: FuzzSchedule | None = None
        self.test_states: list[FuzzTestState] = []
        self.code_files: list[CodeFile] = []
        self.versions: dict[str, str] = {}
        self.failures: dict[tuple[str, str], RunFailure] = {}  # by test and failure
        # Examples to shrink: the test, the blob, the fixes that were applied.
        self.shrink_queue: list[tuple[FuzzTestState, str, list[str]]] = []
        self.check_queue: list[KnownBugCheck] = []
        self.shrink_attempts: Counter[str] = Counter()  # by failure
        self.fixes_by_test: dict[str, list[str]] = {}  # for tests behind a known bug
        self.workers_lost_in_a_row = 0
        self.deadline = 0.0

    # For the engine

    def refill(self) -> None:
        """Make the next slice: a check beyond the budget too, as the run's verdict needs it."""
        if not self.budget.is_turn_of(self):
            return
        if not self.deadline:
            now = time.monotonic()
            self.begin_time_share(now, now + self.budget.take_share(now))
        if self.check_queue:
            self.waiting.append(self._make_check())
        elif time.monotonic() < self.deadline and (picked := self._pick_next_test()):
            self.waiting.append(self._make_time_slice(*picked))

    def has_more(self) -> bool:
        return not self.budget.is_turn_of(self) or super().has_more()

    @property
    def has_only_alone_left(self) -> bool:
        return False  # it searches until its end

    def send_item(self, assignment: Assignment[RunningTimeSlice]) -> None:
        assignment.item.test_state.running_slices += 1
        super().send_item(assignment)

    def finish_pool(self) -> None:
        self.end_workers()

    # Slices

    def accept_collected(self, message: FuzzTestsCollected) -> None:
        """Record the tests that a worker collected, under the numbers of that worker."""
        self.code_files, self.versions = message.code_files, message.versions
        by_name = {state.task.name: state for state in self.test_states}
        for test in message.tests:
            if test.name in by_name:
                by_name[test.name].task = test
            else:
                tested = FuzzTestResult(test.name, self.target.name, left_out=test.left_out)
                self.test_states.append(FuzzTestState(test, tested))

    def begin_time_share(self, now: float, deadline: float) -> None:
        """Begin the release's share of the budget."""
        self.deadline = deadline
        self.schedule = FuzzSchedule(self.test_states, self.request.jobs, deadline - now)

    def _pick_next_test(self) -> tuple[FuzzTestState, list[str], list[str]] | None:
        """Return the next test, its first examples, and the fixes to apply.

        Behind a known bug the search goes on with its fix, so that it hides no other.
        """
        assert self.schedule is not None
        if self.shrink_queue:
            state, blob, fixes = self.shrink_queue.pop(0)
            return state, [blob], fixes
        state_or_none = self.schedule.pick_next()
        if state_or_none is None:
            return None
        return state_or_none, [], self.fixes_by_test.get(state_or_none.task.name, [])

    def _make_check(self) -> RunningTimeSlice:
        """Replay the example of the next failure that may be a known bug."""
        check = self.check_queue.pop(0)
        now, seconds = time.monotonic(), self.request.example_seconds
        time_slice = TimeSlice(
            test_number=check.state.task.number,
            seed=self.random.randrange(2**63),
            memory=self.request.memory,
            generate_until=now + seconds,
            shrink_until=now + seconds,
            end_after=seconds + 30.0,
            replay_blob=self.failures[check.failure_id].repro.blob,
            enable=check.state.task.unfixed_toggles if check.with_fixes else [],
        )
        return RunningTimeSlice(check.state, time_slice, checked=check)

    def accept_check(self, check: KnownBugCheck, was_expected: bool) -> None:
        """Go on to the run with the fixes, or call the failure known."""
        if was_expected and not check.with_fixes:
            self.check_queue.append(dataclasses.replace(check, with_fixes=True))
        elif was_expected:
            fixes = check.state.task.unfixed_toggles
            self.fixes_by_test[check.state.task.name] = fixes
            self.failures[check.failure_id].known = fixes
            check.state.test_result.exhausted = False  # with the fix it is another test

    def _make_time_slice(
        self, state: FuzzTestState, first_blobs: list[str], fixes: list[str]
    ) -> RunningTimeSlice:
        """Make one slice of a test."""
        assert self.schedule is not None
        now = time.monotonic()
        generate = min(self.deadline, now + self.schedule.slice_seconds)
        shrink = min(generate + SHRINK_SECONDS, max(self.deadline, now + 1.0) + GRACE_SECONDS / 2)
        time_slice = TimeSlice(
            test_number=state.task.number,
            seed=self.random.randrange(2**63),
            memory=self.request.memory,
            generate_until=generate,
            shrink_until=shrink,
            # The run ends a hanging example by its note. This limit ends a slice without a note.
            end_after=shrink - now + self.request.example_seconds + 30.0,
            known_failures=self._list_known_failures(state.task.name, set(first_blobs), fixes),
            first_blobs=first_blobs,
            examples_before=state.test_result.examples,
            enable=fixes,
        )
        return RunningTimeSlice(state, time_slice)

    def _list_known_failures(
        self, test: str, blobs_to_shrink: set[str], fixes: list[str]
    ) -> list[str]:
        """Return the failures that count as passes in a slice: all except those to shrink.

        With fixes applied, a failure of the release as it is counts unless the fixes remove it.
        """
        under = [*self.request.under, *((name, "enable") for name in fixes)]
        return [
            failure.repro.key
            for (name, _), failure in self.failures.items()
            if name == test
            and (failure.repro.under == under or (fixes and not failure.known))
            and failure.repro.blob not in blobs_to_shrink
        ]

    def shrink_later(self, running: RunningTimeSlice, failure: FoundFailure) -> None:
        key = " ".join(running.make_failure_id(failure.key))
        self.shrink_attempts[key] += 1
        if self.shrink_attempts[key] <= MAX_SHRINK_ATTEMPTS:
            fixes = running.time_slice.enable
            self.shrink_queue.append((running.test_state, failure.blob, fixes))

    def measure_coverage(self) -> list[FileCoverage]:
        """Return the coverage of each file, over all tests."""
        rows = []
        for file in self.code_files:
            ran: set[int] = set()
            for state in self.test_states:
                ran |= state.covered_lines.get(file.path, set())
            toggled, lines = ran & set(file.toggled_lines), ran & set(file.lines)
            rows.append(
                FileCoverage(
                    release=self.name,
                    file=file.name,
                    toggled=len(toggled),
                    toggled_of=len(file.toggled_lines),
                    lines=len(lines),
                    lines_of=len(file.lines),
                )
            )
        return rows
