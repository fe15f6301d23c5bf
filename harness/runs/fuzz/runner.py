"""A fuzzing run: slices over tests over releases, until the time is over.

One thread and one `select`. A release has its share of the time; the next one's worker imports
meanwhile. Whatever fails is written to a file at once, so nothing that ends the run can lose it.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import time

from harness.core import paths, signals
from harness.core.errors import NotReadyError, UnfixError
from harness.runs.fuzz import failure_files
from harness.runs.fuzz.messages import (
    FoundFailure,
    FuzzResult,
    FuzzTestsCollected,
    RunFailure,
    TimeSliceEnded,
    TimeSliceResult,
)
from harness.runs.fuzz.release_search import (
    GRACE_SECONDS,
    FuzzRequest,
    ReleaseSearch,
    RunningTimeSlice,
    measure_coverage,
)
from harness.store.prove.values import SideOutcome
from harness.workers.messages import StartFailure

WORKERS_AHEAD = 2  # releases whose workers live at once
MAX_LOST_WORKERS = 3  # workers in a row, before a release is given up
DEATH_OUTCOMES = {
    SideOutcome.SEGFAULT,
    SideOutcome.ABORT,
    SideOutcome.KILLED,
    SideOutcome.OUT_OF_MEMORY,
    SideOutcome.EXITED,
    SideOutcome.LOST,
    SideOutcome.HANG,
}


class FuzzListener:
    """Who wants to know how a run goes; this one does not."""

    def report_release_started(self, release: str) -> None: ...

    def report_collected(self, release: str, tests: int, excluded: int, seconds: float) -> None: ...

    def report_progress(self, run: FuzzResult) -> None: ...

    def report_failure(self, failure: RunFailure) -> None: ...

    def report_problem(self, release: str, text: str) -> None: ...


class FuzzDriver:
    """One run, from its first worker to its end."""

    def __init__(self, request: FuzzRequest, listener: FuzzListener) -> None:
        self.request = request
        self.listener = listener
        self.random = random.Random(request.seed)
        self.folder = paths.state_folder() / "fuzz" / f"run-{os.getpid()}"
        self.releases = [
            ReleaseSearch(request, each, self.folder / each.name) for each in request.targets
        ]
        self.result = FuzzResult(seed=request.seed, budget=request.seconds, under=request.under)
        self.started = time.monotonic()
        self.deadline = self.started + request.seconds

    def run_to_end(self) -> None:
        self.result.status = "stopped"
        with signals.record_stop_signals() as came, contextlib.ExitStack() as ending:
            # Each of these is done, whatever becomes of the others: a disk may be full.
            ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
            ending.callback(self._update_listener)
            for lane in self.releases:
                ending.callback(lane.end)
                ending.callback(self._rescue_failures, lane)
            while lanes := [lane for lane in self.releases if not lane.is_over]:
                if came:  # here alone: what came of an example is kept whole, and once
                    raise KeyboardInterrupt
                for lane in lanes[:WORKERS_AHEAD]:
                    if lane.worker is None:
                        self.listener.report_release_started(lane.target.name)
                        lane.start()
                if lanes[0].is_ready:
                    self._start_time_slices(lanes[0])
                self._handle_messages(lanes[:WORKERS_AHEAD])
                self._enforce_limits(lanes[0])
            self.result.status = "finished"

    # Slices

    def _start_time_slices(self, lane: ReleaseSearch) -> None:
        now = time.monotonic()
        if not lane.deadline:
            left = [each for each in self.releases if not each.is_over]
            lane.begin_time_share(now, now + max(0.0, self.deadline - now) / len(left))
        while len(lane.running) < self.request.jobs and time.monotonic() < lane.deadline:
            wanted = lane.pick_next_test()
            if wanted is None:
                break
            lane.start_time_slice(*wanted, seed=self.random.randrange(2**63))
        if not lane.running:
            lane.end()  # its time is over, or nothing is left that an example could show

    # Listening

    def _handle_messages(self, lanes: list[ReleaseSearch]) -> None:
        ends = {lane.worker.read_end: lane for lane in lanes if lane.worker is not None}
        for end in select.select(list(ends), [], [], 0.1)[0]:
            lane = ends[end]
            assert lane.worker is not None
            said = lane.worker.receive_messages()
            if said is None:
                self._handle_lost_worker(lane)
            for each in said or ():
                if isinstance(each, StartFailure):
                    raise (UnfixError if each.is_usage_error else NotReadyError)(
                        f"SGLang {lane.target.name}: {each.problem}"
                    )
                if isinstance(each, FuzzTestsCollected):
                    self._handle_collected(lane, each)
                elif isinstance(each, TimeSliceEnded):
                    self._handle_ended(lane, each)
                self._update_listener()

    def _handle_collected(self, lane: ReleaseSearch, message: FuzzTestsCollected) -> None:
        name = lane.target.name
        for problem in message.problems:
            self._add_problem(name, problem)
        if not message.tests:
            raise UnfixError(
                f"{' '.join(self.request.pytest_arguments)}: pytest collects no test there"
            )
        again = bool(lane.test_states)
        lane.accept_collected(message)
        if again:
            return
        self.result.tests += [state.test_result for state in lane.test_states]
        left_out = sum(bool(test.left_out) for test in message.tests)
        self.listener.report_collected(
            name, len(message.tests) - left_out, left_out, message.seconds
        )

    def _handle_ended(self, lane: ReleaseSearch, message: TimeSliceEnded) -> None:
        assert lane.worker is not None
        running = lane.running.pop(message.serial)
        running.test_state.running_slices -= 1
        sliced = lane.worker.read_result(message.serial)
        outcome = SideOutcome.HANG if running.is_hung else SideOutcome(message.outcome)
        if sliced is None or outcome in DEATH_OUTCOMES:
            self._handle_death(lane, running, outcome, message)
        else:
            self._handle_result(lane, running, outcome, message, sliced)
        lane.worker.delete_files(message.serial)

    def _handle_result(
        self,
        lane: ReleaseSearch,
        running: RunningTimeSlice,
        outcome: SideOutcome,
        message: TimeSliceEnded,
        slice_result: TimeSliceResult,
    ) -> None:
        state = running.test_state
        if slice_result.problem:
            raise NotReadyError(slice_result.problem.removeprefix("NotReady: "))
        lane.workers_lost_in_a_row = 0
        state.add_result(slice_result)
        for key, count in slice_result.known_failure_counts.items():
            lane.failures[state.task.name, key].again += count
        for found in slice_result.failures:
            self._record_failure(lane, running, found, message.detail if found.shrunk else "")
            if not found.shrunk:
                lane.shrink_later(state, found.key, found.blob)
        if outcome in (SideOutcome.NA, SideOutcome.SKIPPED):
            state.test_result.left_out = message.headline
        elif outcome is not SideOutcome.PASSED and not slice_result.failures:
            state.test_result.left_out = message.headline
            self._add_problem(lane.target.name, f"{state.task.name}: {message.headline}")

    def _handle_death(
        self,
        lane: ReleaseSearch,
        running: RunningTimeSlice,
        outcome: SideOutcome,
        message: TimeSliceEnded,
    ) -> None:
        """A process that ended with its example costs that one; what it had found is kept."""
        assert lane.worker is not None
        state, note = running.test_state, lane.worker.read_note(running.time_slice.serial)
        for found in lane.worker.read_failures(running.time_slice.serial):
            self._record_failure(lane, running, found, "")
        if note is None or not note.is_running:
            self._add_problem(lane.target.name, f"{state.task.name}: {outcome}: {message.headline}")
            state.test_result.left_out = f"{outcome}: {message.headline}"
            return
        state.test_result.examples += note.examples
        state.charge_time(1.0)
        words = f"an example took longer than {self.request.example_seconds:g} s"
        found = FoundFailure(
            error=outcome.value,
            where="",
            kind="",
            headline=words if running.is_hung else message.headline,
            arguments=note.arguments,
            blob=note.blob,
            examples=note.examples,
        )
        if (state.task.name, found.key) in lane.failures:
            # A process cannot look away from its own death: such a test has less and less time.
            lane.failures[state.task.name, found.key].again += 1
            state.idle_slices += 1
        self._record_failure(lane, running, found, message.detail)

    def _record_failure(
        self, lane: ReleaseSearch, running: RunningTimeSlice, failure: FoundFailure, detail: str
    ) -> None:
        test = running.test_state.task.name
        known = lane.failures.get((test, failure.key))
        if known is not None and (known.repro.shrunk or not failure.shrunk):
            return
        made = failure_files.make_failure_record(
            failure,
            test,
            lane.target.name,
            self.request.under,
            lane.versions,
            running.time_slice.seed,
            detail,
        )
        kept = failure_files.write_failure(made, failure.key, self.request.toggle_folders)
        if known is not None:
            kept.again = known.again
            self.result.failures[self.result.failures.index(known)] = kept
        else:
            self.result.failures.append(kept)
            self.listener.report_failure(kept)
        lane.failures[test, failure.key] = kept

    def _handle_lost_worker(self, lane: ReleaseSearch) -> None:
        """A worker ended by itself, which no example should be able to do: it is replaced."""
        assert lane.worker is not None
        words = lane.worker.read_log_tail()
        for serial, running in list(lane.running.items()):
            ended = TimeSliceEnded(serial, SideOutcome.LOST.value, "it ended its worker", words, [])
            self._handle_death(lane, running, SideOutcome.LOST, ended)
        lane.running.clear()
        lane.workers_lost_in_a_row += 1
        lane.stop()
        if not lane.test_states or lane.workers_lost_in_a_row > MAX_LOST_WORKERS:
            how = "ended again and again" if lane.test_states else "did not start"
            raise NotReadyError(f"SGLang {lane.target.name} {how}: {words}")

    # Looking after

    def _enforce_limits(self, lane: ReleaseSearch) -> None:
        """End what hangs, and what is not done when the time is over."""
        if lane.worker is None:
            return
        now = time.monotonic()
        for serial, running in lane.running.items():
            note = lane.worker.read_note(serial)
            if (
                note is None
                or not note.is_running
                or now - note.started <= self.request.example_seconds
            ):
                continue
            if now - note.started > self.request.example_seconds + GRACE_SECONDS:
                _signal_process(note.pid, signal.SIGKILL)
            elif not running.is_hung:
                running.is_hung = True
                _signal_process(note.pid, signal.SIGABRT)  # it says where it is
        if lane.deadline and now > lane.deadline + GRACE_SECONDS:
            for running in lane.running.values():
                name = running.test_state.task.name
                self._add_problem(lane.target.name, f"{name}: an example was not done at the end")
            self._rescue_failures(lane)
            lane.end()
        elif not lane.test_states and now > self.deadline:
            raise NotReadyError(
                f"{self.request.seconds:g} s were over before SGLang {lane.target.name} was "
                "imported: say more with --for"
            )

    def _rescue_failures(self, lane: ReleaseSearch) -> None:
        """What slices have found that nobody waits for any longer."""
        if lane.worker is None:
            return
        for serial, running in lane.running.items():
            note = lane.worker.read_note(serial)
            running.test_state.test_result.examples += note.examples if note else 0
            for found in lane.worker.read_failures(serial):
                self._record_failure(lane, running, found, "")
        lane.running.clear()

    # Telling

    def _add_problem(self, release: str, text: str) -> None:
        self.result.problems.append(f"SGLang {release}: {text}")
        self.listener.report_problem(release, text)

    def _update_listener(self) -> None:
        self.result.seconds = time.monotonic() - self.started
        self.result.coverage = [row for lane in self.releases for row in measure_coverage(lane)]
        self.listener.report_progress(self.result)


def _signal_process(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
