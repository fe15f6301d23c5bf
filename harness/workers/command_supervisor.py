"""A command in processes of its own, with a time limit and a server, and without leftovers.

Invariant: the supervisor is the subreaper of all that the command starts, in the background or not.
When the command ends, reaches its limit, or is stopped, when the supervisor gets SIGTERM, or when
the supervisor's own parent is gone, every process below it is killed. Then it writes the
command's end to `exit.json` beside `request.json`, unless the requesting process is gone.

Example: {"command": ["sleep", "9"], "seconds": 5, …} gives {"kind": "hang", …} after 5 s.

    python -m harness.workers.command_supervisor FOLDER PARENT_PID [shielded]

`shielded` adds one process in between. A worker of Ray kills its children before it ends, so its
child cannot clean up. That child waits; the supervisor is the process below.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from harness.core import child_process, process_exit, processes
from harness.core.child_process import ProcessHandle
from harness.core.files import write_atomically
from harness.core.outcomes import Outcome
from harness.core.signals import STOP_SIGNALS

MODULE = "harness.workers.command_supervisor"
SHIELDED = "shielded"
REQUEST_FILE, EXIT_FILE = "request.json", "exit.json"
POLL_SECONDS = 0.1
SERVER_GRACE_SECONDS = 3.0  # for the server beside a command to end by itself
MISSING_EXIT_CODE = 127  # as of a shell


class CommandRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A command with its environment, limit and server."""

    command: list[str]
    environment: dict[str, str]
    working_folder: str
    output: str  # the file for its output
    seconds: float | None = None  # its limit
    server_command: str = ""  # a shell command that starts a server first
    ready_url: str = ""  # the URL that answers once the server is ready


class CommandExit(msgspec.Struct):
    """The end of a command."""

    kind: Outcome
    code: int | None = None  # the exit code of the command or the ended server; negative: a signal
    detail: str = ""  # the moment of the end, or the error
    seconds: float = 0.0
    leftover_count: int = 0  # number of processes killed at the end
    killed_by_kernel: bool = False  # the kernel killed a process for lack of memory


def describe_end(code: int) -> CommandExit:
    """Describe the end of a command that ended by itself."""
    return CommandExit(process_exit.describe_exit(code).kind, code)


def write_request(folder: Path, request: CommandRequest) -> None:
    (folder / EXIT_FILE).unlink(missing_ok=True)
    write_atomically(folder / REQUEST_FILE, msgspec.json.encode(request))


def read_exit(folder: Path) -> CommandExit | None:
    """Read the end of the command; None if its supervisor still runs or was killed."""
    try:
        return msgspec.json.decode((folder / EXIT_FILE).read_bytes(), type=CommandExit)
    except (OSError, msgspec.DecodeError):
        return None


def fork_supervisor(folder: Path) -> ProcessHandle:
    """Fork a supervisor that runs the request of a folder."""
    parent = os.getpid()

    def supervise_in_fork() -> None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        supervise_command(folder, parent)

    # The fork must not run this process's handlers before it has its own.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    child = child_process.fork_process(supervise_in_fork, dies_with_parent=False, new_session=True)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return child


def supervise_command(folder: Path, parent_pid: int) -> None:
    """Run the request of a folder, as its supervisor."""
    request = msgspec.json.decode((folder / REQUEST_FILE).read_bytes(), type=CommandRequest)
    supervise_commands(partial(_run_request, request, parent_pid), folder)


def supervise_commands(run: Callable[[], CommandExit], folder: Path) -> None:
    """Run commands as their subreaper; kill what they leave, and record how they ended."""
    processes.adopt_orphans()
    started, oom_kills = time.monotonic(), processes.count_oom_kills()
    try:
        for number in STOP_SIGNALS:
            signal.signal(number, _raise_stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        ended = run()
    except _StopRequest:
        ended = CommandExit(Outcome.STOPPED)
    finally:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        leftover_count = processes.kill_descendants(os.getpid())
    ended.seconds = time.monotonic() - started
    ended.leftover_count = leftover_count
    ended.killed_by_kernel = processes.count_oom_kills() > oom_kills
    write_atomically(folder / EXIT_FILE, msgspec.json.encode(ended))


class _StopRequest(BaseException):
    """An exception for SIGTERM or Ctrl-C."""


def _raise_stop(*_: Any) -> NoReturn:
    for number in STOP_SIGNALS:  # a second one must not interrupt the end
        signal.signal(number, signal.SIG_IGN)
    raise _StopRequest


def bind_to_supervisor(supervisor_pid: int) -> None:
    """Make this process, the first one of a command, die with its supervisor and before it."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.setsid()  # signals to its own group do not reach the supervisor
    processes.die_with_parent(supervisor_pid)
    processes.volunteer_for_oom_kill()


def wait_while_wanted(process: ProcessHandle, seconds: float, parent_pid: int) -> bool:
    """Wait so long, and return whether a process has ended; exit if the requesting one is gone."""
    if os.getppid() != parent_pid:
        raise SystemExit(1)
    return process.wait_for_exit(seconds)


def _run_request(request: CommandRequest, parent_pid: int) -> CommandExit:
    deadline = time.monotonic() + request.seconds if request.seconds is not None else float("inf")
    with open(request.output, "ab") as output:

        def start(command: list[str] | str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                shell=isinstance(command, str),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=request.working_folder,
                env=request.environment,
                preexec_fn=partial(bind_to_supervisor, os.getpid()),
            )

        def has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
            return wait_while_wanted(ProcessHandle(process.pid), seconds, parent_pid)

        server = None
        if request.server_command:
            if _is_answering(request.ready_url):
                return CommandExit(Outcome.URL_TAKEN)
            server = start(request.server_command)
            while not _is_answering(request.ready_url):
                if has_ended(server, POLL_SECONDS):
                    when = "before it was ready"
                    return CommandExit(Outcome.SERVER_ENDED, server.wait(), when)
                if time.monotonic() > deadline:
                    return CommandExit(Outcome.HANG, None, "the server was not ready")
        try:
            command = start(request.command)
        except OSError as error:
            output.write(f"unfix: {error}\n".encode())
            return CommandExit(Outcome.NOT_FOUND, MISSING_EXIT_CODE, str(error))
        while not has_ended(command, POLL_SECONDS):
            if time.monotonic() > deadline:
                return CommandExit(Outcome.HANG, None, "it did not end")
            if server is not None and has_ended(server, 0):
                when = "while the command ran"
                return CommandExit(Outcome.SERVER_ENDED, server.wait(), when)
        if server is not None and not has_ended(server, 0):
            server.send_signal(signal.SIGTERM)
            has_ended(server, SERVER_GRACE_SECONDS)
    return describe_end(command.wait())


def _is_answering(url: str) -> bool:
    import http.client  # few commands have a server, and this import takes as long as all others
    import urllib.request

    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        # The environment's proxy must not answer for a local server.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=5) as response:
            return bool(200 <= response.status < 300)
    return False


def _run_shielded(folder: Path, parent_pid: int) -> NoReturn:
    """Wait for a forked supervisor as long as the parent lives; exit with its exit code."""
    run = partial(supervise_command, folder, os.getpid())
    supervisor = child_process.fork_process(run, dies_with_parent=False)
    signal.signal(signal.SIGTERM, lambda number, _: supervisor.send_signal(number))
    while not supervisor.wait_for_exit(POLL_SECONDS):
        if os.getppid() != parent_pid:
            sys.exit(1)  # the supervisor then ends the command
    code = supervisor.reap()
    if code < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def main(folder: Path, parent_pid: int, *options: str) -> None:
    (_run_shielded if SHIELDED in options else supervise_command)(folder, parent_pid)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
