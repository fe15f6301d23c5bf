"""A worker from the side of the run: its process, its messages, its end."""

from __future__ import annotations

import contextlib
import secrets
import select
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from harness.core import processes
from harness.core.child_process import PipedProcess
from harness.patching import attestation, bootstrap
from harness.patching.child_environment import HARNESS_PATH, RELEASE_VARIABLE, ChildEnvironment
from harness.store.prove.values import SideResult
from harness.workers.messages import (
    SETTINGS_VARIABLE,
    GuardTask,
    GuardWorkerMessage,
    GuardWorkerSettings,
    TaskKey,
    TestRequest,
    WorkerSettings,
)

MessageT = TypeVar("MessageT")

_MAX_LOG_BYTES = 8000  # the limit of a log in a message
ENGINE_TEST_FILE = "test_engine.py"  # its guards start servers, which no fork patches
START_TIMEOUT = 900.0  # seconds for the imports of a worker, before it counts as hanging
_EXIT_TIMEOUT = 1.0  # seconds for a worker to end by itself
_SUPERVISOR_SLACK = 30.0  # seconds that a supervisor's reply may be late
# All workers of a run iterate over sets in one order, so the sides do not differ in it.
_HASH_SEED = str(secrets.randbelow(2**32))


class WorkerProcess(PipedProcess, Generic[MessageT]):
    """A process that imports a release and runs its tests (see `pytest_session`)."""

    module: ClassVar[str]  # the module that runs in it
    message_type: ClassVar[Any]  # the type of its messages

    def __init__(
        self,
        python: Path,
        settings: WorkerSettings,
        toggle_folders: list[Path],
        working_folder: Path,
        log: Path,
    ) -> None:
        command = [str(python), "-m", self.module]
        environment = _build_environment(settings, toggle_folders)
        environment.require_release(python)
        super().__init__(command, environment, log, working_folder)
        self.folder = Path(settings.folder)
        self.started = time.monotonic()

    @property
    def read_end(self) -> int:
        return self.pipe.read_end

    def send_request(self, request: msgspec.Struct) -> None:
        # `receive_messages` reports a worker that has just ended.
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send(msgspec.json.encode(request))

    def queue_request(self, request: msgspec.Struct) -> None:
        """Queue a request, since the worker may be blocked by a message to this process."""
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send_without_blocking(msgspec.json.encode(request))

    def receive_messages(self) -> list[MessageT] | None:
        """Return the messages that have arrived; None once the worker has closed its pipe."""
        lines = self.pipe.receive_lines()
        if self.pipe.is_peer_closed:
            return None
        return [msgspec.json.decode(line, type=self.message_type) for line in lines]

    def wait_for_first_message(self, seconds: float) -> MessageT | None:
        """Return the worker's first message, or None so many seconds after its start."""
        while (left := self.started + seconds - time.monotonic()) > 0:
            is_ready = select.select([self.read_end], [], [], left)[0]
            messages = self.receive_messages() if is_ready else None
            if messages is None or messages:
                return messages[0] if messages else None
        return None

    def end(self, kill: bool = False) -> int:
        """End the worker and its descendants; return its exit code, negative for a signal."""
        self.pipe.close_write_end()
        if kill:
            self.process.send_signal(signal.SIGABRT)  # faulthandler writes its stacks
        code = self.wait_or_kill(_EXIT_TIMEOUT)
        self.pipe.close()
        return code

    def read_log_tail(self) -> str:
        return processes.read_log_tail(self.log, _MAX_LOG_BYTES).strip()


class GuardWorkerProcess(WorkerProcess[GuardWorkerMessage]):
    """A worker that runs guards."""

    module = "harness.workers.guard_worker"
    message_type = GuardWorkerMessage

    def __init__(
        self,
        python: Path,
        settings: GuardWorkerSettings,
        toggle_folders: list[Path],
        working_folder: Path,
        log: Path,
    ) -> None:
        super().__init__(python, settings, toggle_folders, working_folder, log)
        self.is_ready = False
        self.task_numbers: dict[TaskKey, int] = {}  # this worker's numbers
        self.running_tasks: dict[int, TaskKey] = {}  # by serial number of the request
        self._deadlines: dict[int, float] = {}
        self._request_count = 0
        self.reported_reach = Counter[str]()  # by toggle, from the tests with a result

    def accept_collected_tasks(self, tasks: list[GuardTask]) -> None:
        self.is_ready = True
        self.task_numbers = {task.key: task.number for task in tasks}

    def request_test(
        self,
        task: TaskKey,
        seconds: float,
        memory: int,
        toggle_directions: Iterable[tuple[str, str]] = (),
        *,
        random_seed: int | None = None,
        repeated: SideResult | None = None,
        then_whole: bool = False,
    ) -> int:
        """Request a task, or its repetition; return the request's serial.

        `then_whole` runs the whole test after the repeated part.
        """
        self._request_count += 1
        request = TestRequest(
            self.task_numbers[task],
            self._request_count,
            seconds,
            memory,
            task[2],
            list(toggle_directions),
            random_seed,
        )
        if repeated is not None:
            request.repeat_mode, request.blob = repeated.way, repeated.blob
            request.then_whole = then_whole
        self.running_tasks[request.serial] = task
        self._deadlines[request.serial] = time.monotonic() + seconds
        self.send_request(request)
        return request.serial

    def pop_task(self, serial: int) -> TaskKey:
        """Return the task of a request that has ended, and remove it from the running ones."""
        del self._deadlines[serial]
        return self.running_tasks.pop(serial)

    def is_overdue(self, now: float, start_timeout: float, can_fork: bool) -> bool:
        """Return whether a message is overdue; supervisors enforce the limits of forks."""
        if not self.is_ready:
            return now - self.started > start_timeout
        slack = _SUPERVISOR_SLACK if can_fork else 0.0
        return any(now > ends + slack for ends in self._deadlines.values())

    def read_unreported_reach(self, toggle: str) -> int:
        """Return how often a toggle's code ran in the test that killed this worker."""
        attested = attestation.read_attestations(self.folder / "attestations")
        ours = (a.reach(toggle) for a in attested if a.pid == self.process.pid)
        return max(0, sum(ours) - self.reported_reach[toggle])


def _build_environment(settings: WorkerSettings, toggle_folders: list[Path]) -> ChildEnvironment:
    # Variables that change pytest's behaviour would bypass the recorded settings.
    environment = ChildEnvironment(without=("PYTEST_ADDOPTS", "PYTEST_PLUGINS"))
    environment.clear_toggles()
    environment.add_python_path(*HARNESS_PATH)
    # Larger pages halve the time of a fork of a process with SGLang.
    environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    environment.setdefault("PYTHONHASHSEED", _HASH_SEED)
    environment |= {
        "PYTHONUNBUFFERED": "1",
        # Without bytecode files, importing a release takes three times as long.
        "PYTHONDONTWRITEBYTECODE": "",
        "OMP_NUM_THREADS": "1",
        RELEASE_VARIABLE: settings.release,
        SETTINGS_VARIABLE: msgspec.json.encode(settings).decode(),
        bootstrap.ATTESTATIONS_VARIABLE: str(Path(settings.folder) / "attestations"),
    }
    environment.use_checkout()
    environment.set_toggle_folders(toggle_folders)
    return environment
