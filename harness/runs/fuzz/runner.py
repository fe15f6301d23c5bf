"""A fuzzing run: slices over tests over releases, until the budget is spent.

Each release has its share of the budget. Each failure becomes a file at once, so no end of the run
loses it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError
from harness.core.outcomes import Outcome, RunStatus
from harness.core.signals import record_stop_signals
from harness.runs.fuzz import failure_files
from harness.runs.fuzz.messages import FuzzTestsCollected, TimeSliceEnded, TimeSliceResult
from harness.runs.fuzz.release_search import (
    GRACE_SECONDS,
    FuzzRequest,
    KnownBugCheck,
    ReleaseSearch,
    RunningTimeSlice,
    measure_coverage,
)
from harness.store.fuzz.values import FoundFailure, FuzzRun, RunFailure
from harness.workers.engine import Assignment, Engine

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


class FuzzDriver:
    """One run, from its first worker to its end."""

    def __init__(self, request: FuzzRequest, run: FuzzRun, listener: FuzzListener) -> None:
        self.request = request
        self.run = run
        self.listener = listener
        self.folder = paths.state_folder() / "fuzz" / f"run-{os.getpid()}"
        self.releases = [
            ReleaseSearch(request, each, self.folder / each.name, self) for each in request.targets
        ]
        self.started = time.monotonic()
        self.deadline = 0.0  # the budget begins once the first release is imported

    def run_to_end(self) -> None:
        self.run.status = RunStatus.STOPPED
        # A second signal waits until what was found is stored.
        with record_stop_signals(), contextlib.ExitStack() as ending:
            # Each of these runs even if another one fails, for example on a full disk.
            ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
            ending.callback(self._update_listener)
            for release in self.releases:
                ending.callback(release.end_workers)
                ending.callback(self._rescue_failures, release)
            for _ in Engine(self.releases, self.request.jobs).iterate_turns():
                self._update_listener()
            self.run.status = RunStatus.FINISHED

    # Events of the releases

    def report_release_started(self, release: str) -> None:
        self.listener.report_release_started(release)

    def is_turn_of(self, release: ReleaseSearch) -> bool:
        return release is next(each for each in self.releases if not each.has_ended)

    def take_time_share(self, now: float) -> float:
        self.deadline = self.deadline or now + self.request.seconds
        releases_left = sum(not each.has_ended for each in self.releases)
        return max(0.0, self.deadline - now) / releases_left

    def handle_collected(
        self, release: ReleaseSearch, message: FuzzTestsCollected, is_first: bool
    ) -> None:
        name = release.target.name
        for problem in message.problems:
            self._add_problem(name, problem)
        if not message.tests:
            raise UnfixError(
                f"{' '.join(self.request.pytest_arguments)}: pytest collects no test there"
            )
        if not is_first:
            return
        self.run.tests += [state.test_result for state in release.test_states]
        left_out = sum(bool(test.left_out) for test in message.tests)
        self.listener.report_collected(
            name, len(message.tests) - left_out, left_out, message.seconds
        )

    def handle_slice_end(
        self,
        release: ReleaseSearch,
        ended: Assignment[RunningTimeSlice],
        message: TimeSliceEnded,
    ) -> None:
        running, files = ended.item, release.get_files(ended)
        for key in message.unrepeated:
            why = "it failed in a process that had run other tests, and not in a new one"
            self._add_problem(release.target.name, f"{running.test_state.task.name}: {why}: {key}")
        is_hung = running.is_hung(files.read_note())
        if running.checked is not None:
            found = files.read_failures()
            ran = (note := files.read_note()) is not None and note.examples
            expected = running.checked.was_expected(
                release.failures[running.checked.failure_id].repro,
                message,
                found,
                is_hung,
            )
            release.accept_check(running.checked, bool(ran) and expected)
            files.delete()
            return
        result = files.read_result()
        outcome = Outcome.HANG if is_hung else Outcome(message.outcome)
        if result is None or outcome in DEATH_OUTCOMES:
            self.handle_death(release, ended, message)
        else:
            self._handle_result(release, running, outcome, message, result)
        files.delete()

    def _handle_result(
        self,
        release: ReleaseSearch,
        running: RunningTimeSlice,
        outcome: Outcome,
        message: TimeSliceEnded,
        slice_result: TimeSliceResult,
    ) -> None:
        state = running.test_state
        if slice_result.problem:
            raise NotReadyError(slice_result.problem.removeprefix("NotReady: "))
        release.workers_lost_in_a_row = 0
        state.add_result(slice_result)
        for key, count in slice_result.known_failure_counts.items():
            with_fixes, as_is = running.make_failure_id(key), (state.task.name, key)
            release.failures[with_fixes if with_fixes in release.failures else as_is].again += count
        for failure in slice_result.failures:
            detail = message.detail if failure.shrunk else ""
            self._record_failure(release, running, failure, detail)
            if not failure.shrunk:
                release.shrink_later(running, failure)
        if outcome in (Outcome.NA, Outcome.SKIPPED):
            state.test_result.left_out = message.headline
        elif outcome is not Outcome.PASSED and not slice_result.failures:
            state.test_result.left_out = message.headline
            self._add_problem(release.target.name, f"{state.task.name}: {message.headline}")

    def handle_death(
        self,
        release: ReleaseSearch,
        ended: Assignment[RunningTimeSlice],
        message: TimeSliceEnded,
    ) -> None:
        """Record the example that ended a slice's process, and the slice's earlier failures."""
        running, files = ended.item, release.get_files(ended)
        state, note = running.test_state, files.read_note()
        outcome = Outcome.HANG if running.is_hung(note) else Outcome(message.outcome)
        for earlier in files.read_failures():
            self._record_failure(release, running, earlier, "")
        if note is None or not note.is_running:
            self._add_problem(
                release.target.name, f"{state.task.name}: {outcome}: {message.headline}"
            )
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
        if (
            earlier_death := release.failures.get(running.make_failure_id(failure.key))
        ) is not None:
            # A known death cannot count as a pass: the test gets less and less time instead.
            earlier_death.again += 1
            state.idle_slices += 1
        self._record_failure(release, running, failure, message.detail)

    def _record_failure(
        self, release: ReleaseSearch, running: RunningTimeSlice, failure: FoundFailure, detail: str
    ) -> None:
        state = running.test_state
        identity = running.make_failure_id(failure.key)
        known = release.failures.get(identity)
        if known is not None and (known.repro.shrunk or not failure.shrunk):
            return
        record = failure_files.make_failure_record(
            failure,
            test=state.task.name,
            release=release.target.name,
            under=[
                *self.request.under,
                *((name, "enable") for name in running.time_slice.enable),
            ],
            versions=release.versions,
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
        release.failures[identity] = written
        if state.task.unfixed_toggles and not running.time_slice.enable and not written.known:
            release.check_queue.append(KnownBugCheck(state, identity))

    # Limits

    def enforce_limits(self, release: ReleaseSearch, now: float) -> None:
        """End examples that hang, and slices that still run when the time is over."""
        for each in release.running.values():
            note = release.get_files(each).read_note()
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
        late = [each for each in release.running.values() if each.item.checked is None]
        if release.deadline and now > release.deadline + GRACE_SECONDS and late:
            for each in late:
                if release.get_files(each).is_waiting:
                    continue  # for a process: no example has begun
                name = each.item.test_state.task.name
                self._add_problem(release.name, f"{name}: an example was not done at the end")
            self._rescue_failures(release)
            release.is_given_up = True
        elif not release.test_states and self.deadline and now > self.deadline:
            raise NotReadyError(
                f"{self.request.seconds:g} s were over before SGLang {release.name} was imported: "
                "say more with --for"
            )

    def _rescue_failures(self, release: ReleaseSearch) -> None:
        """Record the failures of running slices before their end."""
        for each in release.running.values():
            files = release.get_files(each)
            note = files.read_note()
            each.item.test_state.test_result.examples += note.examples if note else 0
            for failure in files.read_failures():
                self._record_failure(release, each.item, failure, "")
        release.running.clear()

    # Reporting

    def _add_problem(self, release_name: str, text: str) -> None:
        problem = f"SGLang {release_name}: {text}"
        if problem in self.run.problems:
            return
        self.run.problems.append(problem)
        self.listener.report_problem(release_name, text)

    def _update_listener(self) -> None:
        now = time.monotonic()
        self.run.seconds = now - self.started
        if self.deadline:
            self.run.search_seconds = now - (self.deadline - self.request.seconds)
        self.run.coverage = [row for release in self.releases for row in measure_coverage(release)]
        self.listener.report_progress(self.run)


def _signal_process(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
