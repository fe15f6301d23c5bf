"""A worker as a run sees it: started, spoken to, ended."""

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

_MAX_LOG_CHARACTERS = 8000  # characters of a log worth showing
START_TIMEOUT = 900.0  # seconds for the imports of a worker, before it counts as hanging
_EXIT_TIMEOUT = 1.0  # seconds to end by itself
_SUPERVISOR_SLACK = 30.0  # seconds that a keeper may be late
# One order of sets for all workers of a run: no two sides differ in it.
_HASH_SEED = str(secrets.randbelow(2**32))


class WorkerProcess(PipedProcess, Generic[MessageT]):
    """One process that imports a release and runs tests there, as `session.py` has it."""

    module: ClassVar[str]  # what it is
    message_type: ClassVar[Any]  # and the shapes of what it says

    def __init__(
        self,
        python: Path,
        settings: WorkerSettings,
        toggle_folders: list[Path],
        working_folder: Path,
        log: Path,
    ) -> None:
        command = [str(python), "-m", self.module]
        super().__init__(command, _build_environment(settings, toggle_folders), log, working_folder)
        self.folder = Path(settings.folder)
        self.started = time.monotonic()

    @property
    def read_end(self) -> int:
        return self.pipe.read_end

    def send_request(self, request: msgspec.Struct) -> None:
        # A worker that just died is noticed by its other end.
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send(msgspec.json.encode(request))

    def queue_request(self, request: msgspec.Struct) -> None:
        """To a worker that may have as much to say, and waits for somebody to listen."""
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send_without_blocking(msgspec.json.encode(request))

    def receive_messages(self) -> list[MessageT] | None:
        """What has come since; None once it is gone."""
        lines = self.pipe.receive_lines()
        if self.pipe.is_peer_closed:
            return None
        return [msgspec.json.decode(line, type=self.message_type) for line in lines]

    def wait_for_first_message(self, seconds: float) -> MessageT | None:
        """What it says first, so many seconds after its start at the latest."""
        while (left := self.started + seconds - time.monotonic()) > 0:
            said = (
                self.receive_messages() if select.select([self.read_end], [], [], left)[0] else None
            )
            if said is None or said:
                return said[0] if said else None
        return None

    def end(self, kill: bool = False) -> int:
        """End it and all below it; gives its exit code, negative for a signal."""
        self.pipe.close_write_end()
        if kill:
            self.process.send_signal(signal.SIGABRT)  # it says where it is
        code = self.wait_or_kill(_EXIT_TIMEOUT)
        self.pipe.close()
        return code

    def read_log_tail(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-_MAX_LOG_CHARACTERS:].strip()
        except OSError:
            return ""


class GuardWorkerProcess(WorkerProcess[GuardWorkerMessage]):
    """One that runs guards."""

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
        self.task_numbers: dict[TaskKey, int] = {}  # of the tasks, as this worker counts them
        self.running_tasks: dict[int, TaskKey] = {}  # by the order's serial
        self._deadlines: dict[int, float] = {}
        self._request_count = 0
        self.reported_reach: Counter[str] = (
            Counter()
        )  # reach by toggle, of the tests that came back

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
        """Have a task run, or what of it `again` says, and then the `whole`; gives the serial."""
        self._request_count += 1
        order = TestRequest(
            self.task_numbers[task],
            self._request_count,
            seconds,
            memory,
            list(toggle_directions),
            random_seed,
        )
        if repeated is not None:
            order.repeat_mode, order.blob, order.then_whole = (
                repeated.way,
                repeated.blob,
                then_whole,
            )
        self.running_tasks[order.serial] = task
        self._deadlines[order.serial] = time.monotonic() + seconds
        self.send_request(order)
        return order.serial

    def pop_task(self, serial: int) -> TaskKey:
        """Which task came back."""
        del self._deadlines[serial]
        return self.running_tasks.pop(serial)

    def is_overdue(self, now: float, start_timeout: float, can_fork: bool) -> bool:
        """Whether it should have said something by now; keepers know the limits of forks."""
        if not self.is_ready:
            return now - self.started > start_timeout
        slack = _SUPERVISOR_SLACK if can_fork else 0.0
        return any(now > ends + slack for ends in self._deadlines.values())

    def read_unreported_reach(self, toggle: str) -> int:
        """How often a toggle's code ran in the test that ended this worker."""
        attested = attestation.read_attestations(self.folder / "attestations")
        ours = (a.reach(toggle) for a in attested if a.pid == self.process.pid)
        return max(0, sum(ours) - self.reported_reach[toggle])


def _build_environment(settings: WorkerSettings, toggle_folders: list[Path]) -> ChildEnvironment:
    # Variables that change what pytest does are not part of a run that records its settings.
    environment = ChildEnvironment(without=("PYTEST_ADDOPTS", "PYTEST_PLUGINS"))
    environment.clear_toggles()
    environment.add_python_path(*HARNESS_PATH)
    # Larger pages halve the time of a fork of a process that holds SGLang.
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
