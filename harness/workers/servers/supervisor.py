"""Whoever looks after one server: adopts what it leaves behind, and ends all of it.

A server is a tree of processes that end each other with signals, and some outlive their parents.
The keeper is their last parent. It ends when it is told to (SIGTERM), when whoever started it is
gone, and when the server's first process ended; then nothing of the tree is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from harness.core import processes

POLL_INTERVAL = 0.2


def supervise_server(server_pid: int, folder: Path, parent_pid: int) -> None:
    """Wait for this child; then say how it ended, with nothing left below."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    kills = processes.count_oom_kills()
    handle = os.pidfd_open(server_pid)
    while not _has_exited(handle):
        if told or os.getppid() != parent_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server_pid, signal.SIGKILL)  # asked kindly, SGLang takes seconds
    _, status = os.waitpid(server_pid, 0)
    said = {
        "code": os.waitstatus_to_exitcode(status),
        "asked": bool(told),
        "left": processes.kill_descendants(os.getpid()),
        "out_of_memory": processes.count_oom_kills() > kills,
    }
    temporary = folder / "ended.part"
    temporary.write_text(json.dumps(said))
    os.replace(temporary, folder / "ended.json")


def _has_exited(handle: int) -> bool:
    try:
        return bool(select.select([handle], [], [], POLL_INTERVAL)[0])
    except InterruptedError:
        return False


def start_supervised_command(folder: Path) -> NoReturn:
    """Start the command of a folder's `start.json` and keep it."""
    asked: dict[str, Any] = json.loads((folder / "start.json").read_text())
    processes.adopt_orphans()
    me = os.getpid()
    server = os.fork()
    if not server:
        try:
            bind_to_supervisor(me)
            redirect_to_log(folder / "log")
            os.chdir(asked["cwd"])
            os.execve(asked["command"][0], asked["command"], asked["environment"])
        except BaseException as error:
            os.write(2, f"unfix: {error}\n".encode())
        finally:
            os._exit(127)
    supervise_server(server, folder, asked["parent"])
    os._exit(0)


def bind_to_supervisor(supervisor_pid: int) -> None:
    """For the server's first process: it goes before its keeper does, and not without it."""
    os.setsid()  # what it sends to its own group must not reach the keeper
    processes.die_with_parent(supervisor_pid)
    processes.volunteer_for_oom_kill()


def redirect_to_log(log: Path) -> None:
    """Give this process the log for its output, and no input."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


if __name__ == "__main__":
    start_supervised_command(Path(sys.argv[1]))
