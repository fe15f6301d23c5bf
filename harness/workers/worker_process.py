"""A worker from the side of the run: its process, its messages, its end."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from harness.core import processes
from harness.core.child_process import PipedProcess
from harness.patching import bootstrap
from harness.patching.child_environment import HARNESS_PATH, RELEASE_VARIABLE, ChildEnvironment
from harness.workers.engine import MessageT, Worker
from harness.workers.messages import SETTINGS_VARIABLE, WorkerSettings

_MAX_LOG_BYTES = 8000  # the limit of a log in a message
ENGINE_TEST_FILE = "test_engine.py"  # its guards start servers, which no fork patches
_EXIT_TIMEOUT = 1.0  # seconds for a worker to end by itself
# All workers of a run iterate over sets in one order, so the sides do not differ in it.
_HASH_SEED = str(secrets.randbelow(2**32))


class WorkerProcess(PipedProcess, Worker[MessageT]):
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
        self.is_ready = False

    def fileno(self) -> int:
        return self.pipe.read_end

    @property
    def unsent_ends(self) -> list[int]:
        return self.pipe.pending_write_ends

    def send_rest(self) -> None:
        self.pipe.flush()

    def send_request(self, request: msgspec.Struct) -> None:
        """Send a request, or queue it while the worker is blocked by a message to this process."""
        # `receive_messages` reports a worker that has just ended.
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send_without_blocking(msgspec.json.encode(request))

    def receive_messages(self) -> list[MessageT] | None:
        """Return the messages that have arrived; None once the worker has closed its pipe."""
        lines = self.pipe.receive_lines()
        if self.pipe.is_peer_closed:
            return None
        return [msgspec.json.decode(line, type=self.message_type) for line in lines]

    def ask_to_end(self) -> None:
        self.pipe.close_write_end()

    def end(self, kill: bool = False) -> int:
        """End the worker and its descendants; return its exit code, negative for a signal."""
        self.ask_to_end()
        if kill:
            self.process.send_signal(signal.SIGABRT)  # faulthandler writes its stacks
        code = self.wait_or_kill(_EXIT_TIMEOUT)
        self.pipe.close()
        return code

    def read_log_tail(self) -> str:
        return processes.read_log_tail(self.log, _MAX_LOG_BYTES).strip()


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
