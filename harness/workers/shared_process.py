"""A process that runs many tests, one at a time, because it has started CUDA once.

On a GPU a fork for each test would start CUDA in each, which takes longer than most tests. So a
supervisor forks one process from those that never used CUDA, and passes it one request after
another. Its limits hold for each.

Invariant: a test finds the state that a new fork would have, as far as `process_state` sees it. The
process ends after a test whose state cannot be put back, whose device is lost, that left something
running, or that took much memory; one that dies or hangs is killed. The next test then has a new
process.

Example: of ten faults the third one leaves an illegal memory access behind. Its process ends, and
the fourth fault is the first of another one, 2 s later.
"""

from __future__ import annotations

import json
import os
import select
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.core import child_process, processes
from harness.core.pipes import PipeEnd
from harness.guards.run_item import PhaseRecorder
from harness.patching import bootstrap, live_engine
from harness.store.prove.values import SideResult
from harness.workers import device_tests, drop_references, supervisor
from harness.workers.process_state import ProcessState
from harness.workers.supervisor import TestFiles

ENDED_PHRASE = "unfix: a shared process ended"
MAX_RUNS = 200  # of one process: each fault leaves it a little larger
MEMORY_FRACTION = 0.5  # of a test's limit, by which a process may grow


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
    """The process as its supervisor sees it: started for a first test, replaced when it ends."""

    def __init__(self, serve: Callable[[PipeEnd], None]) -> None:
        self.runs = 0  # of the present process, before the running one
        self.imported: list[str] = []  # by its last run, for the first time
        self._serve = serve
        self._process: child_process.ProcessHandle | None = None
        self._pipe: PipeEnd | None = None
        self._reply: dict[str, Any] | None = None

    def run(self, request: bytes, files: TestFiles) -> SideResult:
        """Run a request, whatever it does to its process."""
        if self._process is not None and self._process.wait_for_exit(0.0):
            self.end()  # it died while it was idle
        self.runs = self.runs + 1 if self._process is not None else 0

        def start() -> SharedProcess:
            self._start(request)
            return self

        return supervisor.supervise_test(start, files, self._clean_up)

    def end(self) -> None:
        """End the process, if there is one; the next run has a new one."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._reap_process()
        processes.kill_descendants(os.getpid())

    def _start(self, request: bytes) -> None:
        self._reply, self.imported = None, []
        if self._process is None:
            self._process, self._pipe = child_process.fork_with_pipe(self._serve)
        assert self._pipe is not None
        self._pipe.send(request)

    # As a `RunningTest`

    def wait_for_exit(self, seconds: float) -> bool:
        """Wait for the reply, or for the end of the process."""
        assert self._process is not None
        assert self._pipe is not None
        ends: list[Any] = [] if self._pipe.is_peer_closed else [self._pipe.read_end]
        ready = select.select([self._process, *ends], [], [], seconds)[0]
        if self._pipe.read_end in ready:
            for line in self._pipe.receive_lines():
                self._reply = json.loads(line)
        return self._reply is not None or self._process in ready

    def send_signal(self, signal_number: int) -> None:
        assert self._process is not None
        self._process.send_signal(signal_number)

    def reap(self) -> int:
        if self._reply is not None:
            self.imported = self._reply["imported"]
            if not self._reply["spent"]:
                return 0
            why = f"{ENDED_PHRASE} after {self.runs + 1} tests: {self._reply['spent']}\n"
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
        return processes.kill_descendants(os.getpid())


class TestServer:
    """The serving side: it runs tests in this process until the process is spent."""

    def __init__(self, make_run: Callable[[bytes], SharedRun], recorder: PhaseRecorder) -> None:
        self._make_run = make_run
        self._recorder = recorder
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
        for runs, line in enumerate(pipe.iterate_lines(), start=1):
            run = self._make_run(line)
            if runs == 1:
                self._take_state(run.files)
            self._begin_run(run.files)
            supervisor.run_and_write_result(run.test, run.files)
            problem = run.take_back() or self._clean_up(run)
            if runs > 1 and not problem and run.repeat_without_change():
                problem = self._clean_up(run)
            if not problem and runs == MAX_RUNS:
                problem = f"it has run {runs} tests"
            pipe.send(json.dumps({"spent": problem, "imported": self._imported}).encode())
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
        self._imported += self._state.find_new_modules()
        if self._imported:  # the state in which they began is not known any more
            return f"it imported {self._imported[0]}"
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
