"""A process that runs many tests, one at a time, because it has started CUDA once.

On a GPU a fork for each test would start CUDA in each, which takes longer than most tests. So a
supervisor has one process (`shared_runs`), and passes it one request after another. Its limits hold
for each.

Invariant: a test finds the state that a new fork would have, as far as `process_state` sees it. The
process ends after a test whose state cannot be put back, whose device is lost, that left something
running, or that took much memory; one that dies or hangs is killed. The next test then has a new
process. Where a process takes long to start, a standby is started beside it: a second one, which
takes its place at once.

Example: of ten faults the third one leaves an illegal memory access behind. Its process ends, and
the fourth fault is the first of another one, 2 s later. Where a process has to import SGLang, that
is its standby, and the next standby imports while the fourth fault runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.core import process_exit, processes
from harness.core.child_process import ProcessHandle
from harness.core.pipes import PipeEnd, Receivers, serve_until
from harness.guards.run_item import PhaseRecorder
from harness.patching import bootstrap, live_engine
from harness.store.prove.values import SideResult
from harness.workers import device_tests, drop_references, supervisor
from harness.workers.messages import StartFailure
from harness.workers.process_state import ProcessState
from harness.workers.supervisor import TestFiles

ENDED_PHRASE = "unfix: a shared process ended"
MAX_RUNS = 200  # of one process: each fault leaves it a little larger
MEMORY_FRACTION = 0.5  # of a test's limit, by which a process may grow
START_SECONDS = 900.0  # for a process to start, with its imports, before it counts as hanging
MIN_FREE_SHARE = 0.5  # of a device's memory, for a standby to start


class SharedProcessReady(msgspec.Struct, tag=True):
    """A process has started CUDA and can run tests."""

    tests: list[str]
    free_share: float = 1.0  # of the device's memory


class SharedRunEnded(msgspec.Struct, tag=True):
    """A test has ended, and its process may go on."""

    spent: str  # why it cannot go on; empty if it can
    imported: list[str]  # modules that the test imported first


SharedProcessMessage = SharedProcessReady | SharedRunEnded | StartFailure


@dataclass(frozen=True)
class SharedRun:
    """A test as the shared process runs it, and how its changes are taken back."""

    files: TestFiles
    test: Callable[[], SideResult]
    # Returns why the process cannot go on, or an empty string.
    take_back: Callable[[], str] = lambda: ""
    # Runs what failed again, without the change; returns whether there was anything to run.
    repeat_without_change: Callable[[], bool] = lambda: False
    is_changed: bool = False  # by a fault: what it added to the process is suspect


class SharedProcess:
    """The process as its supervisor sees it: started before a test, replaced when it ends.

    `standby_count`: the standbys of all supervisors; 0 if this one has none.
    """

    def __init__(
        self,
        start_process: Callable[[], tuple[ProcessHandle, PipeEnd]],
        tests: list[str],
        standby_count: int = 0,
    ) -> None:
        self.runs = 0  # of the present process, before the running or the last one
        self.imported: list[str] = []  # by its last run, for the first time
        self._start_process = start_process
        self._tests = tests
        self._standby_count = standby_count
        self._standby: tuple[ProcessHandle, PipeEnd] | None = None
        self._was_standby = False  # the present process
        self._free_share = 1.0  # of the device's memory, when the process was ready
        self._process: ProcessHandle | None = None
        self._pipe: PipeEnd | None = None
        self._is_ready = False
        self._message: Any = None

    def start(self) -> None:
        """Start a process if there is none, without waiting for it."""
        if self._process is not None and self._process.wait_for_exit(0.0):  # while it was idle
            if self._was_standby and not self._is_ready:
                self._give_up_standbys("it was taken")
            self.end()
        if self._process is None:
            standby = self._take_standby()
            self._was_standby = standby is not None
            self._process, self._pipe = standby or self._start_process()
            self.runs, self._is_ready, self._message = -1, False, None

    def wait_until_ready(self) -> float:
        """Wait until a process can run a test, and start one if there is none.

        Return the seconds of waiting. An error means that it ended, hung, or knows other tests.
        """
        begun = time.monotonic()
        self.start()
        if not self._is_ready:
            if not self.wait_for_exit(START_SECONDS):
                self.send_signal(signal.SIGKILL)
            message = self._message
            if not isinstance(message, SharedProcessReady):
                problem = process_exit.describe_code(self._reap_process())
                if isinstance(message, StartFailure):
                    problem = message.problem
                if self._was_standby:
                    self._give_up_standbys(problem)
                    self.wait_until_ready()
                    return time.monotonic() - begun
                raise RuntimeError(f"a process for many tests did not start: {problem}")
            if message.tests != self._tests:
                self.end()
                raise RuntimeError("a process for many tests collects others than its worker")
            self._is_ready, self._free_share = True, message.free_share
        return time.monotonic() - begun

    def run(self, request: bytes, files: TestFiles) -> SideResult:
        """Run a request in a process that is ready, whatever it does to it."""
        self.runs += 1
        self._keep_standby(files.request.memory)

        def send() -> SharedProcess:
            assert self._pipe is not None
            self._message, self.imported = None, []
            with contextlib.suppress(BrokenPipeError):  # it has just ended, which is the result
                self._pipe.send(request)
            return self

        return supervisor.supervise_test(send, files, self._clean_up, self._standby_pids)

    def end(self) -> None:
        """End the process, if there is one; the next run has a new one."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._reap_process()
        processes.kill_descendants(os.getpid(), self._standby_pids)

    # The standby

    @property
    def _standby_pids(self) -> tuple[int, ...]:
        """The standby, which is no part of any test."""
        return () if self._standby is None else (self._standby[0].pid,)

    def _keep_standby(self, memory_limit: int) -> None:
        """Start a standby if there is none and the memory of machine and device allows it."""
        if self._standby is not None or not self._standby_count or self._process is None:
            return
        # All supervisors see the same free memory; one test may grow to its limit beside them.
        own = processes.read_resident_bytes(self._process.pid)
        needed = memory_limit + self._standby_count * own
        if self._free_share >= MIN_FREE_SHARE and processes.read_available_bytes() >= needed:
            self._standby = self._start_process()

    def _take_standby(self) -> tuple[ProcessHandle, PipeEnd] | None:
        """Take the standby, ready or not; None if there is none or it has died."""
        standby, self._standby = self._standby, None
        if standby is not None and standby[0].wait_for_exit(0.0):
            standby[1].close()
            self._give_up_standbys(process_exit.describe_code(standby[0].reap()))
            return None
        return standby

    def _give_up_standbys(self, why: str) -> None:
        """Start no standby any more: one has died, perhaps because memory is short."""
        self._standby_count = 0
        os.write(2, f"unfix: a standby ended, and none follows: {why}\n".encode())

    # As a `RunningTest`

    def wait_for_exit(self, seconds: float) -> bool:
        """Wait for its message, or for the end of the process.

        A message can be longer than a pipe holds: its parts arrive one after another.
        """
        assert self._process is not None
        assert self._pipe is not None
        process, pipe, ends = self._process, self._pipe, list[None]()

        def receive_message() -> None:
            for line in pipe.receive_lines():
                self._message = msgspec.json.decode(line, type=SharedProcessMessage)

        def list_receivers() -> Receivers:
            end: Receivers = {process: lambda: ends.append(None)}
            return end if pipe.is_peer_closed else {**end, pipe: receive_message}

        return serve_until(lambda: bool(ends or self._message), list_receivers, seconds)

    def send_signal(self, signal_number: int) -> None:
        assert self._process is not None
        self._process.send_signal(signal_number)

    def reap(self) -> int:
        if isinstance(self._message, SharedRunEnded):
            self.imported = self._message.imported
            if not self._message.spent:
                return 0
            why = f"{ENDED_PHRASE} after {self.runs + 1} tests: {self._message.spent}\n"
            os.write(2, why.encode())  # into the worker's log
        return self._reap_process()

    def _reap_process(self) -> int:
        assert self._process is not None
        assert self._pipe is not None
        code = self._process.reap()
        self._pipe.close()
        self._process = self._pipe = None
        return code

    def _clean_up(self) -> int:
        if self._process is not None:  # it has none
            return 0
        return processes.kill_descendants(os.getpid(), self._standby_pids)


class TestServer:
    """The serving side: it runs tests in this process until the process is spent."""

    def __init__(
        self,
        make_run: Callable[[bytes], SharedRun],
        recorder: PhaseRecorder,
        tests: list[str],
        import_ahead: Callable[[], bool] | None,
    ) -> None:
        self._make_run = make_run
        self._recorder = recorder
        self._tests = tests
        # Imports what other processes' tests did, and tells whether there was anything; None: its
        # supervisor has imported that. A process that imports for itself is costly to replace.
        self._import_ahead = import_ahead
        self._output = -1

    def serve(self, pipe: PipeEnd) -> None:
        try:
            self._serve(pipe)
        except BaseException:  # of this module: the test's own errors are its result
            os.write(2, f"unfix: {traceback.format_exc()}\n".encode())
            os._exit(supervisor.INTERNAL_FAILURE_EXIT_CODE)

    def _serve(self, pipe: PipeEnd) -> None:
        supervisor.enter_test_process()
        processes.adopt_orphans()
        device_tests.start_device()
        ready = SharedProcessReady(self._tests, device_tests.read_free_share())
        pipe.send(msgspec.json.encode(ready))
        for runs, line in enumerate(pipe.iterate_lines(), start=1):
            run = self._make_run(line)
            has_imported = self._import_ahead is not None and self._import_ahead()
            if runs == 1:
                self._take_state(run.files)
            elif has_imported:
                self._state.accept_modules()
            self._begin_run(run.files)
            supervisor.run_and_write_result(run.test, run.files)
            problem = run.take_back() or self._clean_up(run)
            if runs > 1 and not problem and run.repeat_without_change():
                problem = self._clean_up(run)
            if not problem and runs == MAX_RUNS:
                problem = f"it has run {runs} tests"
            pipe.send(msgspec.json.encode(SharedRunEnded(problem, self._imported)))
            if problem:
                return

    def _take_state(self, files: TestFiles) -> None:
        """Take the state that each test finds, before the first one."""
        # pytest's `tmp_path` lies in a folder that is deleted with the run.
        files.build_path("tmp").mkdir(exist_ok=True)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(files.build_path("tmp"))
        self._state = ProcessState()
        self._first_bytes = processes.read_resident_bytes(os.getpid())

    def _begin_run(self, files: TestFiles) -> None:
        before, self._output = self._output, supervisor.redirect_output(files)
        if before >= 0:
            os.close(before)
        attestations = files.build_path("attestations")
        live_engine.engine.recorder.begin_again(attestations)
        os.environ[bootstrap.ATTESTATIONS_VARIABLE] = str(attestations)
        processes.limit_forks(files.request.fork_limit)
        self._imported: list[str] = []

    def _clean_up(self, run: SharedRun) -> str:
        """Take a run's traces back; return why the process cannot go on, or an empty string."""
        if not live_engine.engine.is_idle:
            return "a change of its code cannot be taken out"
        drop_references.drop_test_references(self._recorder)
        if problem := self._state.restore():
            return problem
        if new := self._state.find_new_modules():  # the state in which they began is not known
            self._imported += new
            if self._import_ahead is None or run.is_changed:
                return f"it imported {new[0]}"
            self._state.accept_modules()  # a failure that follows is repeated in a new process
        if running := self._state.find_running():
            if run.is_changed:
                return running
            self._state.accept_running()
        if problem := device_tests.read_pending_error():
            return problem
        device_tests.release_memory()
        growth = processes.read_resident_bytes(os.getpid()) - self._first_bytes
        if growth > MEMORY_FRACTION * run.files.request.memory:
            return f"it has grown by {growth >> 20} MiB"
        return ""
