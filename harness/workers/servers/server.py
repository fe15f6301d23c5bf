"""An SGLang server: its start, readiness, requests, failures and end.

Invariant: after `stop`, or the end of a `with` block, no process of the server is left, even if its
supervisor was killed. Example of `describe_exit`: "RuntimeError: no such head (exit code 1)".
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness.core import paths, process_exit, processes
from harness.core.child_process import ProcessHandle
from harness.core.errors import NotReadyError, UnfixError
from harness.core.outcomes import Outcome
from harness.patching import attestation
from harness.patching.child_environment import ChildEnvironment
from harness.sanitizer.device.record import DeviceRecord
from harness.sanitizer.watch import report_files, virtual_process
from harness.workers import command_supervisor
from harness.workers.command_supervisor import CommandRequest
from harness.workers.servers import adaptations, orphans, ports, rank_stacks
from harness.workers.servers.zygote import REFUSAL_FILE, REFUSED_EXIT_CODE, ServerRequest

COLD_START_MODULE = "harness.workers.servers.cold_start"
REFERENCE_MODULE = "harness.workers.servers.reference_server"
POLL_INTERVAL = 0.05
# The environment's proxy must not answer for a local server.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
DEFAULT_ENVIRONMENT = {
    # Readiness is polled: without this, SGLang answers a prompt for each poll, after a second.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    # Otherwise, after the death of a rank, it waits for unused dumps before it ends.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
}
# Data-parallel attention uses ports at these offsets from the server's own.
DATA_PARALLEL_PORT_OFFSETS = range(233, 243)
STOP_TIMEOUT = 15.0
EXIT_RECORD_TIMEOUT = 10.0  # for a supervisor to record how its server ended
_LOG_TAIL_BYTES = 60_000
# The last line of a traceback.
_ERROR_LINE = re.compile(
    r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|OutOfBounds|"
    r"UninitializedMemory|DataRace|IntegerOverflow|UncheckableKernel|AccessRuleViolation|"
    r"KernelAssertion|StaleGraphAddress|StaleGraphNumber|UnorderedAccess|EarlyReuse)\b.*",
    re.MULTILINE,
)
# Lines of the fault handler, which do not name the cause.
_STACK_LINE = re.compile(r'Fatal Python error: |(Current t|T)hread 0x|  File "|Extension modules: ')
_OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|(?:cannot|can't) allocate memory|\bbad_alloc\b|^MemoryError",
    re.IGNORECASE,
)
_RECENT_LINES = 5  # an earlier error may be the cause of later ones


class ServerFailed(NotReadyError):
    """An error: a server did not become ready, or died. The message has the reason."""


@dataclass(frozen=True)
class ServerSetup:
    """The settings of a server: its release, arguments, toggles and adaptations."""

    python: Path
    sglang_arguments: tuple[str, ...]
    release: str = "current"
    revert: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    toggle_folders: tuple[Path, ...] = ()
    adaptations: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    module: str = COLD_START_MODULE  # the module that serves
    kernel_checks: str = ""  # on a GPU, the checks of its compiled kernels
    is_virtual: bool = False  # it runs on the virtual GPU


class ServerStarter(Protocol):
    """Another way to start a server. Returns its supervisor's pid, or None if it cannot."""

    def start_server(self, server: SglangServer, arguments: Sequence[str]) -> int | None: ...


class SglangServer:
    """One server and all of its processes. Use `with`: at the end no process is left."""

    def __init__(
        self, setup: ServerSetup, folder: Path, zygote: ServerStarter | None = None
    ) -> None:
        self.setup = setup
        self.folder = folder
        self.log = folder / "log"
        self.attestations = folder / "attestations"
        self.check_folder = (folder / "check").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in (command_supervisor.EXIT_FILE, REFUSAL_FILE, "log"):
            (folder / name).unlink(missing_ok=True)
        virtual_process.drop_records(folder)
        self._port_reservations = ports.reserve_ports(2, DATA_PARALLEL_PORT_OFFSETS)
        self.port = self._port_reservations[0].port
        self.url = f"http://127.0.0.1:{self.port}"
        self.is_warm = False
        self.started_at = time.monotonic()
        self.seconds_to_ready = 0.0  # seconds from the start until it was ready
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = secrets.token_hex(8)
        self._stop_lock, self._is_stopped = threading.Lock(), False
        try:
            words = _build_server_arguments(setup, self.port, self._port_reservations[1].port)
            pid = zygote.start_server(self, words) if zygote is not None else None
            self._pid = self._start_cold(words) if pid is None else pid
            self.handle = ProcessHandle(self._pid)
        except ProcessLookupError:
            self._release_ports()
            raise ServerFailed(
                f"the server ended before it was ready: {self.describe_exit()}"
            ) from None
        except BaseException:
            self._release_ports()
            raise
        self.is_warm = pid is not None

    def _start_cold(self, arguments: list[str]) -> int:
        setup = self.setup
        command = [str(setup.python), "-m", setup.module, *arguments]
        environment = ChildEnvironment(
            {
                **setup.environment,
                adaptations.ADAPTATIONS_VARIABLE: ",".join(setup.adaptations),
                "PYTHONUNBUFFERED": "1",
                "PYTHONFAULTHANDLER": "1",  # writes the stacks of a rank that hangs
                orphans.MARK_VARIABLE: self._mark,
            }
        )
        environment.add_python_path(paths.HARNESS_FOLDER.parent)
        environment.require_release(setup.python)
        environment.set_toggles(setup.revert, setup.enable, setup.toggle_folders, self.attestations)
        if setup.is_virtual:
            environment.use_virtual_device(None, self.folder.resolve())
        if setup.kernel_checks:
            report_files.request_checks(environment, setup.kernel_checks, self.check_folder)
        request = CommandRequest(
            command=command,
            environment=environment,
            working_folder=str(Path.cwd()),
            output=str(self.log.resolve()),
        )
        supervisor_environment = ChildEnvironment()
        supervisor_environment.add_python_path(paths.HARNESS_FOLDER.parent)
        command_supervisor.write_request(self.folder, request)
        self._process = subprocess.Popen(
            [sys.executable, "-m", command_supervisor.MODULE, str(self.folder), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal does not reach it
            env=supervisor_environment,
        )
        return self._process.pid

    def make_zygote_request(self, arguments: Sequence[str]) -> ServerRequest:
        """Make the request for a process that forks this server."""
        setup = self.setup
        return ServerRequest(
            folder=str(self.folder.resolve()),
            arguments=list(arguments),
            environment=setup.environment,
            attestations=str(self.attestations.resolve()),
            revert=list(setup.revert),
            enable=list(setup.enable),
            toggle_folders=[str(folder.resolve()) for folder in setup.toggle_folders],
            adaptations=list(setup.adaptations),
            is_virtual=setup.is_virtual,
        )

    # While it lives

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until the server answers; raise ServerFailed with the reason if it does not."""
        ends = time.monotonic() + seconds
        while True:
            if self.handle.wait_for_exit(POLL_INTERVAL):
                raise ServerFailed(f"the server ended before it was ready: {self.describe_exit()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.send_request("/health", seconds=max(0.1, min(10, ends - time.monotonic())))
                self.seconds_to_ready = time.monotonic() - self.started_at
                return
            if time.monotonic() > ends:
                reasons = [
                    self._describe_last_error(),
                    *map(str, rank_stacks.dump_rank_stacks(self._pid, self.log)),
                ]
                raise ServerFailed(
                    f"the server was not ready after {seconds:.0f} s: {'; '.join(reasons)}"
                )

    @property
    def seconds_since_ready(self) -> float:
        return time.monotonic() - self.started_at - self.seconds_to_ready

    def send_request(self, path: str, payload: Any = None, seconds: float = 600.0) -> bytes:
        request = urllib.request.Request(
            self.url + path,
            data=None if payload is None else json.dumps(payload).encode(),
            headers={"content-type": "application/json"},
        )
        with _OPENER.open(request, timeout=seconds) as answer:
            data: bytes = answer.read()
            return data

    def is_answering(self, seconds: float) -> bool:
        """Return whether the server still responds, even with an error."""
        began = time.monotonic()
        try:
            question = {"model": "default", "prompt": "a", "max_tokens": 1}
            self.send_request("/v1/completions", question, seconds)
        except (OSError, http.client.HTTPException):
            return time.monotonic() - began < seconds
        return True

    @property
    def has_exited(self) -> bool:
        return self.handle.wait_for_exit(0)

    def has_died(self) -> bool:
        """Return whether the server ended; its supervisor exits a moment after its port closes."""
        return self.has_exited or (
            not self._is_listening() and self.handle.wait_for_exit(EXIT_RECORD_TIMEOUT)
        )

    def _is_listening(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), EXIT_RECORD_TIMEOUT).close()
        except OSError:
            return False
        return True

    def describe_exit(self) -> str:
        """Describe the server's end, with the last error in its log."""
        ended = command_supervisor.read_exit(self.folder)
        if ended is None:
            return f"{self._describe_last_error()} (its supervisor was killed)"
        code = -signal.SIGKILL if ended.code is None else ended.code
        described = process_exit.describe_exit(code, killed_by_kernel=ended.killed_by_kernel)
        if described.kind is Outcome.OUT_OF_MEMORY:
            return described.words
        return f"{self._describe_last_error()} ({process_exit.describe_code(code)})"

    def describe_hang(self) -> str:
        """Return the stacks of the ranks of a server that hangs; this aborts its processes."""
        found = rank_stacks.dump_rank_stacks(self._pid, self.log)
        places = "; ".join(map(str, found)) or "no rank has a stack"
        return f"hang: {places}"

    def read_check_reports(self) -> report_files.CheckSummary | None:
        """Return the reports of the checks of its compiled kernels."""
        return report_files.read_reports(self.check_folder) if self.setup.kernel_checks else None

    def read_device_record(self) -> DeviceRecord | None:
        """Return what its processes asked of the virtual GPU."""
        return virtual_process.read_records(self.folder) if self.setup.is_virtual else None

    def _describe_last_error(self) -> str:
        if (checked := self.read_check_reports()) is not None and checked.reports:
            return checked.reports[0].summary_line
        text = self.read_log_tail()
        errors = _ERROR_LINE.findall(text)
        lines = [line for line in text.splitlines() if line.strip() and not _STACK_LINE.match(line)]
        recent = errors[-_RECENT_LINES:] or lines[-_RECENT_LINES:]
        memory = [line for line in recent if _OUT_OF_MEMORY.search(line)]
        if memory:
            return f"out of memory: {memory[-1].strip()[:300]}"
        return recent[-1].strip()[:400] if recent else "its log is empty"

    def read_log_tail(self) -> str:
        return processes.read_log_tail(self.log, _LOG_TAIL_BYTES)

    @property
    def refusal(self) -> str:
        """Return the reason for a refused warm start: toggles that need an import of their own."""
        ended = command_supervisor.read_exit(self.folder)
        if ended is None or ended.code != REFUSED_EXIT_CODE:
            return ""
        with contextlib.suppress(OSError):
            return (self.folder / REFUSAL_FILE).read_text()
        return ""

    def read_reach(self) -> dict[str, int]:
        """Return the calls of each toggle's code, in all of the server's processes."""
        attested = attestation.read_attestations(self.attestations)
        names = [(name, "revert") for name in self.setup.revert]
        names += [(name, "enable") for name in self.setup.enable]
        return {name: sum(each.reach(name, how) for each in attested) for name, how in names}

    # Its end

    def request_stop(self) -> None:
        """Send the stop signal, without waiting."""
        self.handle.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End all of the server's processes; a second caller waits until the first is done."""
        with self._stop_lock:
            if self._is_stopped:
                return
            if not self.has_exited:
                self.request_stop()
                if not self.handle.wait_for_exit(STOP_TIMEOUT):
                    self._kill_all()
            if command_supervisor.read_exit(self.folder) is None:
                orphans.kill_orphans(self._mark, self.log)
            if self._process is not None:
                self._process.wait()
            self._release_ports()
            self._is_stopped = True

    def _kill_all(self) -> None:
        for pid in [self._pid, *processes.iterate_descendants(self._pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _release_ports(self) -> None:
        for one in self._port_reservations:
            one.close()
        self._port_reservations = []

    def __enter__(self) -> SglangServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _build_server_arguments(setup: ServerSetup, port: int, nccl_port: int) -> list[str]:
    """Build SGLang's arguments, with the reserved ports."""
    ours = ("--port", "--host", "--nccl-port")
    for word in setup.sglang_arguments:
        if word.partition("=")[0] in ours:
            raise UnfixError(f"{word} cannot be set: each server gets a free port")
    if setup.module == REFERENCE_MODULE:
        return [*setup.sglang_arguments, "--port", str(port)]
    named = ["--host", "127.0.0.1", "--port", str(port), "--nccl-port", str(nccl_port)]
    return [*setup.sglang_arguments, *named]
