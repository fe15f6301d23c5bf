"""A supervisor's runs in a shared process: how that starts, and what is repeated in a new one.

The process is a fork of its supervisor. Where the import of a release starts CUDA, no fork can use
it: each supervisor then starts the worker's module anew, and that process imports the release
itself. As this takes most of a minute, each starts one before there is a run for it, and a standby
beside it.

Example: SGLang's own packages start CUDA at their import. A run with four jobs has the worker, four
supervisors, and below each of these a process with SGLang, which makes one attempt after another,
and a standby, which does nothing until that process ends.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec
import pytest

from harness.core import child_process, device
from harness.core.child_process import ProcessHandle
from harness.core.pipes import PipeEnd
from harness.guards.run_item import PhaseRecorder
from harness.store.prove.values import SideResult
from harness.workers.messages import SETTINGS_VARIABLE, WorkerSettings
from harness.workers.shared_process import SharedProcess, SharedRun, TestServer

STARTED = b"started"  # a supervisor's first line, once its process has imported the release
WAITED_PHRASE = "unfix: a test waited for its process"
SHORTEST_REPORTED_WAIT = 0.1  # seconds


class ImportedModules:
    """The modules that some run imported first, in a file that all processes of a worker read.

    Each process that imports the release itself imports them before its next run, so that no run
    has to: a run that imports can end its process.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "imported"
        self._known: set[str] = set()

    def add(self, names: Iterable[str]) -> None:
        if lines := "".join(f"{name}\n" for name in names):
            with open(self._file, "a") as file:
                file.write(lines)

    def import_new(self) -> bool:
        """Import those that this process has not; return whether there were any."""
        names = self._file.read_text().splitlines() if self._file.exists() else []
        new = [name for name in dict.fromkeys(names) if name not in self._known]
        self._known.update(new)
        import_modules(new)
        return bool(new)


def import_modules(names: Iterable[str]) -> None:
    """Import modules ahead of the runs; a failure is the run's to report."""
    for name in names:
        with warnings.catch_warnings(action="ignore"), contextlib.suppress(Exception):
            importlib.import_module(name)


class SharingSession(Protocol):
    """What a worker's session says of its runs."""

    request_type: ClassVar[Any]
    items: list[pytest.Item]
    pipe: PipeEnd
    folder: Path
    recorder: PhaseRecorder
    environment: dict[str, str]

    @property
    def settings(self) -> WorkerSettings: ...

    def make_run(self, request: Any) -> SharedRun: ...

    def needs_new_process(self, request: Any) -> bool: ...

    def wait_for_process(self, request: Any, wait: Callable[[], float]) -> Any: ...

    def repeat_doubtful_run(
        self, request: Any, side: SideResult, run_anew: Callable[[Any], SideResult]
    ) -> SideResult: ...


class SharedRuns:
    """The runs of one supervisor; in the worker itself, what it knows of its supervisors'."""

    def __init__(self, session: SharingSession) -> None:
        settings = session.settings
        self.is_server = settings.is_shared_process
        can_fork = self.is_server or device.can_forks_use_device()
        self.starts_processes = settings.shares_processes and not can_fork
        self.modules = ImportedModules(session.folder)
        self._session = session
        self._tests = [item.nodeid for item in session.items]
        start = self._start_process if self.starts_processes else self._fork_process
        standby_count = settings.jobs if self.starts_processes else 0
        self._process = SharedProcess(start, self._tests, standby_count)

    # In a supervisor

    def report_start(self, pipe: PipeEnd) -> None:
        """Have the process started, and tell the worker of it, or why it did not start."""
        if not self.starts_processes:
            return
        try:
            self._process.wait_until_ready()
        except RuntimeError as error:
            pipe.send(str(error).encode())
            raise
        pipe.send(STARTED)

    def run(self, request: Any) -> SideResult:
        if self._session.needs_new_process(request):
            self._process.end()
        side = self._run_once(request)
        if not self._process.runs:
            return side
        return self._session.repeat_doubtful_run(request, side, self._run_anew)

    def start_ahead(self) -> None:
        """Start a process for the next run if the last one has ended, without waiting."""
        if self.starts_processes:
            self._process.start()

    def _run_anew(self, request: Any) -> SideResult:
        self._process.end()
        return self._run_once(request)

    def _run_once(self, request: Any) -> SideResult:
        session = self._session
        if self.starts_processes:
            request = session.wait_for_process(request, self._wait_for_process)
        else:
            self._process.wait_until_ready()
        side = self._process.run(msgspec.json.encode(request), session.make_run(request).files)
        if self.starts_processes:
            self.modules.add(self._process.imported)
        else:
            import_modules(self._process.imported)  # so that no later fork has to
        return side

    def _wait_for_process(self) -> float:
        seconds = self._process.wait_until_ready()
        if seconds > SHORTEST_REPORTED_WAIT:
            os.write(2, f"{WAITED_PHRASE} for {seconds:.1f} s\n".encode())  # into the worker's log
        return seconds

    def _fork_process(self) -> tuple[ProcessHandle, PipeEnd]:
        def serve(pipe: PipeEnd) -> None:
            self._session.pipe.close()
            self.serve(pipe)

        return child_process.fork_with_pipe(serve)

    def _start_process(self) -> tuple[ProcessHandle, PipeEnd]:
        main: Any = sys.modules["__main__"]
        settings = msgspec.structs.replace(self._session.settings, is_shared_process=True)
        encoded = msgspec.json.encode(settings).decode()
        environment = {**self._session.environment, SETTINGS_VARIABLE: encoded}
        command = [sys.executable, "-m", main.__spec__.name]
        return child_process.start_with_pipe(command, environment)

    # In the process

    def serve(self, pipe: PipeEnd) -> None:
        """Run what a supervisor requests, in this process."""
        session = self._session

        def make_run(line: bytes) -> SharedRun:
            return session.make_run(msgspec.json.decode(line, type=session.request_type))

        import_ahead = self.modules.import_new if self.is_server else None
        TestServer(make_run, session.recorder, self._tests, import_ahead).serve(pipe)
