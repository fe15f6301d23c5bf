"""One release of a fuzzing run, whose results are recorded as they come.

Each failure becomes a file at once, so no end of the run loses it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from harness.core.errors import NotReadyError, UnfixError
from harness.core.outcomes import Outcome
from harness.runs.fuzz import failure_files
from harness.runs.fuzz.messages import (
    FuzzTestsCollected,
    FuzzWorkerMessage,
    TimeSliceEnded,
    TimeSliceResult,
)
from harness.runs.fuzz.release_search import (
    GRACE_SECONDS,
    MAX_LOST_WORKERS,
    FuzzRequest,
    KnownBugCheck,
    ReleaseSearch,
    RunningTimeSlice,
    TimeBudget,
)
from harness.store.fuzz.values import FoundFailure, FuzzRun, RunFailure
from harness.workers.engine import Assignment, WorkerEnd
from harness.workers.messages import StartFailure
from harness.workers.release_target import ReleaseTarget

DEATH_OUTCOMES = {
    Outcome.SEGFAULT,
    Outcome.ABORT,
    Outcome.SIGNAL,
    Outcome.OUT_OF_MEMORY,
    Outcome.EXITED,
    Outcome.LOST,
    Outcome.HANG,
}


class FuzzListener:
    """A listener that ignores the events of a run; a subclass shows them."""

    def report_release_started(self, release: str) -> None: ...

    def report_collected(self, release: str, tests: int, excluded: int, seconds: float) -> None: ...

    def report_progress(self, run: FuzzRun) -> None: ...

    def report_failure(self, failure: RunFailure) -> None: ...

    def report_problem(self, release: str, text: str) -> None: ...


class RecordedSearch(ReleaseSearch):
    """A release's slices, with the run that has their results and the listener that shows them."""

    def __init__(
        self,
        request: FuzzRequest,
        target: ReleaseTarget,
        folder: Path,
        budget: TimeBudget,
        run: FuzzRun,
        listener: FuzzListener,
    ) -> None:
        super().__init__(request, target, folder, budget)
        self.run, self.listener = run, listener

    # For the engine

    def prepare(self) -> None:
        self.listener.report_release_started(self.name)

    def handle_message(self, worker: Any, message: FuzzWorkerMessage) -> None:
        if isinstance(message, StartFailure):
            self.give_up(message.problem, is_usage_error=message.is_usage_error)
        elif isinstance(message, FuzzTestsCollected):
            self.accept_collected(message)
            self.handle_collected(message, self.accept_worker(worker))
        else:
            assignment = self.finish(message.serial)
            assignment.item.test_state.running_slices -= 1
            self.handle_slice_end(assignment, message)

    def report_lost_worker(self, end: WorkerEnd, was_idle: bool) -> None:
        """Count the workers that ended by themselves, which no example should cause."""
        self.workers_lost_in_a_row += 1
        if self.workers_lost_in_a_row > MAX_LOST_WORKERS:
            self.give_up("its workers ended again and again:", end.log)

    def record_loss(self, lost: Assignment[RunningTimeSlice], end: WorkerEnd) -> None:
        lost.item.test_state.running_slices -= 1
        words = Outcome.LOST.value, "it ended its worker", end.log
        self.handle_death(lost, TimeSliceEnded(lost.serial, *words, []))

    def check_limits(self, now: float) -> None:
        if self.budget.is_turn_of(self):
            self.enforce_limits(now)

    # Results

    def handle_collected(self, message: FuzzTestsCollected, is_first: bool) -> None:
        for problem in message.problems:
            self._add_problem(problem)
        if not message.tests:
            raise UnfixError(
                f"{' '.join(self.request.pytest_arguments)}: pytest collects no test there"
            )
        if not is_first:
            return
        self.run.tests += [state.test_result for state in self.test_states]
        left_out = sum(bool(test.left_out) for test in message.tests)
        self.listener.report_collected(
            self.name, len(message.tests) - left_out, left_out, message.seconds
        )

    def handle_slice_end(
        self,
        ended: Assignment[RunningTimeSlice],
        message: TimeSliceEnded,
    ) -> None:
        running, files = ended.item, self.get_files(ended)
        for key in message.unrepeated:
            why = "it failed in a process that had run other tests, and not in a new one"
            self._add_problem(f"{running.test_state.task.name}: {why}: {key}")
        is_hung = running.is_hung(files.read_note())
        if running.checked is not None:
            found = files.read_failures()
            ran = (note := files.read_note()) is not None and note.examples
            expected = running.checked.was_expected(
                self.failures[running.checked.failure_id].repro,
                message,
                found,
                is_hung,
            )
            self.accept_check(running.checked, bool(ran) and expected)
            files.delete()
            return
        result = files.read_result()
        outcome = Outcome.HANG if is_hung else Outcome(message.outcome)
        if result is None or outcome in DEATH_OUTCOMES:
            self.handle_death(ended, message)
        else:
            self._handle_result(running, outcome, message, result)
        files.delete()

    def _handle_result(
        self,
        running: RunningTimeSlice,
        outcome: Outcome,
        message: TimeSliceEnded,
        slice_result: TimeSliceResult,
    ) -> None:
        state = running.test_state
        if slice_result.problem:
            raise NotReadyError(slice_result.problem.removeprefix("NotReady: "))
        self.workers_lost_in_a_row = 0
        state.add_result(slice_result)
        for key, count in slice_result.known_failure_counts.items():
            with_fixes, as_is = running.make_failure_id(key), (state.task.name, key)
            self.failures[with_fixes if with_fixes in self.failures else as_is].again += count
        for failure in slice_result.failures:
            detail = message.detail if failure.shrunk else ""
            self._record_failure(running, failure, detail)
            if not failure.shrunk:
                self.shrink_later(running, failure)
        if outcome in (Outcome.NA, Outcome.SKIPPED):
            state.test_result.left_out = message.headline
        elif outcome is not Outcome.PASSED and not slice_result.failures:
            state.test_result.left_out = message.headline
            self._add_problem(f"{state.task.name}: {message.headline}")

    def handle_death(
        self,
        ended: Assignment[RunningTimeSlice],
        message: TimeSliceEnded,
    ) -> None:
        """Record the example that ended a slice's process, and the slice's earlier failures."""
        running, files = ended.item, self.get_files(ended)
        state, note = running.test_state, files.read_note()
        outcome = Outcome.HANG if running.is_hung(note) else Outcome(message.outcome)
        for earlier in files.read_failures():
            self._record_failure(running, earlier, "")
        if note is None or not note.is_running:
            self._add_problem(f"{state.task.name}: {outcome}: {message.headline}")
            state.test_result.left_out = f"{outcome}: {message.headline}"
            return
        state.test_result.examples += note.examples
        state.charge_time(1.0)
        too_long = f"an example took longer than {self.request.example_seconds:g} s"
        failure = FoundFailure(
            error=outcome.value,
            where="",
            kind="",
            headline=too_long if outcome is Outcome.HANG else message.headline,
            arguments=note.arguments,
            blob=note.blob,
            examples=note.examples,
        )
        if (earlier_death := self.failures.get(running.make_failure_id(failure.key))) is not None:
            # A known death cannot count as a pass: the test gets less and less time instead.
            earlier_death.again += 1
            state.idle_slices += 1
        self._record_failure(running, failure, message.detail)

    def _record_failure(
        self, running: RunningTimeSlice, failure: FoundFailure, detail: str
    ) -> None:
        state = running.test_state
        identity = running.make_failure_id(failure.key)
        known = self.failures.get(identity)
        if known is not None and (known.repro.shrunk or not failure.shrunk):
            return
        record = failure_files.make_failure_record(
            failure,
            test=state.task.name,
            release=self.name,
            under=[
                *self.request.under,
                *((name, "enable") for name in running.time_slice.enable),
            ],
            versions=self.versions,
            seed=running.time_slice.seed,
            detail=detail,
        )
        written = failure_files.write_failure(record, failure.key, self.request.toggle_folders)
        if known is not None:
            written.again, written.known = known.again, known.known
            self.run.failures[self.run.failures.index(known)] = written
        else:
            self.run.failures.append(written)
            self.listener.report_failure(written)
        self.failures[identity] = written
        if state.task.unfixed_toggles and not running.time_slice.enable and not written.known:
            self.check_queue.append(KnownBugCheck(state, identity))

    # Limits

    def enforce_limits(self, now: float) -> None:
        """End examples that hang, and slices that still run when the time is over."""
        for each in self.running.values():
            note = self.get_files(each).read_note()
            if (
                note is None
                or not note.is_running
                or now - note.started <= self.request.example_seconds
            ):
                continue
            if now - note.started > self.request.example_seconds + GRACE_SECONDS:
                _signal_process(note.pid, signal.SIGKILL)
            elif not each.item.is_hung(note):
                each.item.hung_pid = note.pid
                _signal_process(note.pid, signal.SIGABRT)  # its faulthandler writes its stacks
        late = [each for each in self.running.values() if each.item.checked is None]
        if self.deadline and now > self.deadline + GRACE_SECONDS and late:
            for each in late:
                if self.get_files(each).is_waiting:
                    continue  # for a process: no example has begun
                name = each.item.test_state.task.name
                self._add_problem(f"{name}: an example was not done at the end")
            self.rescue_failures()
            self.is_given_up = True
        elif not self.test_states and self.budget.deadline and now > self.budget.deadline:
            raise NotReadyError(
                f"{self.request.seconds:g} s were over before SGLang {self.name} was imported: "
                "say more with --for"
            )

    def rescue_failures(self) -> None:
        """Record the failures of running slices before their end."""
        for each in self.running.values():
            files = self.get_files(each)
            note = files.read_note()
            each.item.test_state.test_result.examples += note.examples if note else 0
            for failure in files.read_failures():
                self._record_failure(each.item, failure, "")
        self.running.clear()

    # Reporting

    def _add_problem(self, text: str) -> None:
        problem = f"SGLang {self.name}: {text}"
        if problem in self.run.problems:
            return
        self.run.problems.append(problem)
        self.listener.report_problem(self.name, text)


def _signal_process(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
