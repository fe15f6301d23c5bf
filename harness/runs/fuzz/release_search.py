"""One release of a run: its worker, its tests, and what of them has failed."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from harness.runs.fuzz import example_corpus
from harness.runs.fuzz.fuzz_schedule import FuzzSchedule, FuzzTestState
from harness.runs.fuzz.messages import (
    CodeFile,
    FileCoverage,
    FuzzTestResult,
    FuzzTestsCollected,
    FuzzWorkerSettings,
    RunFailure,
    TimeSlice,
    ToggleDirections,
)
from harness.runs.fuzz.worker_process import FuzzWorkerProcess
from harness.workers.release_target import ReleaseTarget

SHRINK_SECONDS = 30.0  # seconds for shrinking a failure
MAX_SHRINK_ATTEMPTS = 2  # slices for one that takes longer
GRACE_SECONDS = 4.0  # seconds beyond the budget, for what is just being done


@dataclass(frozen=True)
class FuzzRequest:
    """What the caller wants."""

    targets: list[ReleaseTarget]
    pytest_arguments: list[str]  # pytest's arguments: the suites
    pytest_folder: Path  # where pytest stands
    under: ToggleDirections
    seconds: float
    jobs: int
    seed: int
    memory: int
    example_seconds: float  # seconds for an example
    toggle_folders: list[Path] = field(default_factory=list)  # further toggles


@dataclass
class RunningTimeSlice:
    """A slice under way."""

    test_state: FuzzTestState
    time_slice: TimeSlice
    is_hung: bool = False


class ReleaseSearch:
    """One release of the run."""

    def __init__(self, request: FuzzRequest, target: ReleaseTarget, folder: Path) -> None:
        self.request = request
        self.target = target
        self.folder = folder
        self.worker: FuzzWorkerProcess | None = None
        self.schedule: FuzzSchedule | None = None
        self.test_states: list[FuzzTestState] = []
        self.running: dict[int, RunningTimeSlice] = {}
        self.code_files: list[CodeFile] = []
        self.versions: dict[str, str] = {}
        self.failures: dict[tuple[str, str], RunFailure] = {}  # by test and failure
        self.shrink_queue: list[
            tuple[FuzzTestState, str]
        ] = []  # examples that are still to be shrunk
        self.shrink_attempts: Counter[str] = Counter()  # at shrinking an example
        self.workers_lost_in_a_row = 0  # workers in a row that ended by themselves
        self.is_ready = False
        self.deadline = 0.0
        self.serial = 0
        self.is_over = False

    def start(self) -> None:
        place = example_corpus.locate_corpus(self.target.name, self.request.under)
        example_corpus.prepare_corpus(place)
        self.folder.mkdir(parents=True, exist_ok=True)
        setting = FuzzWorkerSettings(
            release=self.target.requested_as or self.target.name,
            pytest_arguments=["--profile", "nightly", *self.request.pytest_arguments],
            under=self.request.under,
            folder=tempfile.mkdtemp(dir=self.folder),
            corpus=str(place),
            device=self.target.device,
        )
        log = self.folder / "worker.log"
        python = self.target.python
        self.worker = FuzzWorkerProcess(
            python, setting, self.request.toggle_folders, self.request.pytest_folder, log
        )

    def stop(self) -> None:
        self.is_ready = False
        if self.worker is not None:
            self.worker.end()
            self.worker = None

    def end(self) -> None:
        self.is_over = True
        self.stop()

    def accept_collected(self, message: FuzzTestsCollected) -> None:
        """What a worker collected; one in place of another counts the same tests anew."""
        self.code_files, self.versions = message.code_files, message.versions
        by_name = {state.task.name: state for state in self.test_states}
        for test in message.tests:
            if test.name in by_name:
                by_name[test.name].task = test
            else:
                tested = FuzzTestResult(test.name, self.target.name, left_out=test.left_out)
                self.test_states.append(FuzzTestState(test, tested))
        self.is_ready = True

    def begin_time_share(self, now: float, deadline: float) -> None:
        """Its part of the time begins."""
        self.deadline = deadline
        self.schedule = FuzzSchedule(self.test_states, self.request.jobs, deadline - now)

    def pick_next_test(self) -> tuple[FuzzTestState, list[str]] | None:
        """The test that is next, and the examples that come first in it."""
        assert self.schedule is not None
        if self.shrink_queue:
            state, blob = self.shrink_queue.pop(0)
            return state, [blob]
        state_or_none = self.schedule.pick_next()
        return None if state_or_none is None else (state_or_none, [])

    def start_time_slice(
        self, state: FuzzTestState, first_blobs: list[str], seed: int
    ) -> TimeSlice:
        """Have the worker run a test for a while."""
        assert self.schedule is not None
        assert self.worker is not None
        now = time.monotonic()
        self.serial += 1
        generate = min(self.deadline, now + self.schedule.slice_seconds)
        shrink = min(generate + SHRINK_SECONDS, max(self.deadline, now + 1.0) + GRACE_SECONDS / 2)
        asked = TimeSlice(
            test_number=state.task.number,
            serial=self.serial,
            seed=seed,
            memory=self.request.memory,
            generate_until=generate,
            shrink_until=shrink,
            # Whoever hangs is found by its example; this is for who cannot even say so.
            end_after=shrink - now + self.request.example_seconds + 30.0,
            known_failures=self._list_known_failures(state.task.name, set(first_blobs)),
            first_blobs=first_blobs,
            examples_before=state.test_result.examples,
        )
        state.running_slices += 1
        self.running[asked.serial] = RunningTimeSlice(state, asked)
        self.worker.send_request(asked)
        return asked

    def _list_known_failures(self, test: str, blobs_to_shrink: set[str]) -> list[str]:
        """What a slice need not find again; what it is to shrink it has to find."""
        return [
            key
            for (name, key), kept in self.failures.items()
            if name == test and kept.repro.blob not in blobs_to_shrink
        ]

    def shrink_later(self, state: FuzzTestState, key: str, blob: str) -> None:
        self.shrink_attempts[key] += 1
        if self.shrink_attempts[key] <= MAX_SHRINK_ATTEMPTS:
            self.shrink_queue.append((state, blob))


def measure_coverage(release: ReleaseSearch) -> list[FileCoverage]:
    """How much of each file has run, over all tests of a release."""
    rows = []
    for file in release.code_files:
        ran: set[int] = set()
        for state in release.test_states:
            ran |= state.covered_lines.get(file.path, set())
        toggled, lines = ran & set(file.toggled_lines), ran & set(file.lines)
        rows.append(
            FileCoverage(
                release=release.target.name,
                file=file.name,
                toggled=len(toggled),
                toggled_of=len(file.toggled_lines),
                lines=len(lines),
                lines_of=len(file.lines),
            )
        )
    return rows
