"""One run of a command in a process of its own: its server, its limit, and all it leaves behind.

The process is a fork of the search; it writes what it saw beside the specification. Whatever the
command starts ends with it, in the background or not.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from harness.core import processes
from harness.core.signals import STOP_SIGNALS

POLL_SECONDS = 0.1
SERVER_GRACE_SECONDS = 3.0  # seconds for a server to end by itself
_requester_pid = 0  # the process that waits for the outcome


def fork_supervisor(request_file: Path) -> int:
    """Begin a run, in a fork; gives its pid."""
    parent = os.getpid()
    # Until it has its own, the fork must not take the search's way to stop.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    code = 1
    try:
        os.setsid()
        for one in STOP_SIGNALS:
            signal.signal(one, _exit_on_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        supervise_command(request_file, parent)
        code = 0
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def supervise_command(request_file: Path, parent_pid: int) -> None:
    global _requester_pid
    _requester_pid = parent_pid
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, _exit_on_signal)
    specification = json.loads(request_file.read_text())
    started = time.monotonic()
    try:
        seen = _run_request(specification)
    finally:
        processes.kill_descendants(os.getpid())
    seen["seconds"] = time.monotonic() - started
    temporary = request_file.with_suffix(".part")
    temporary.write_text(json.dumps(seen))
    os.replace(temporary, request_file.with_suffix(".seen"))


def _exit_on_signal(*_: Any) -> None:
    raise SystemExit(1)


def _run_request(request: dict[str, Any]) -> dict[str, Any]:
    ends = time.monotonic() + request["seconds"]
    with open(request["output"], "ab") as output:
        server = None
        if request["serve"]:
            if _is_answering(request["ready"]):
                return {"how": "taken"}
            server = _start_process(request, request["serve"], output)
            while not _is_answering(request["ready"]):
                if _has_ended(server, POLL_SECONDS):
                    return {"how": "server", "code": server.wait(), "when": "before it was ready"}
                if time.monotonic() > ends:
                    return {"how": "hang", "when": "the server was not ready"}
        try:
            command = _start_process(request, request["command"], output)
        except OSError as error:
            return {"how": "missing", "error": str(error)}
        while not _has_ended(command, POLL_SECONDS):
            if time.monotonic() > ends:
                return {"how": "hang", "when": "it did not end"}
            if server is not None and _has_ended(server, 0):
                return {"how": "server", "code": server.wait(), "when": "while it was asked"}
        if server is not None and not _has_ended(server, 0):
            server.send_signal(signal.SIGTERM)
            _has_ended(server, SERVER_GRACE_SECONDS)
    return {"how": "ended", "code": command.wait()}


def _start_process(
    request: dict[str, Any], command: list[str] | str, output: Any
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        shell=isinstance(command, str),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=request["folder"],
        env=request["environment"],
    )


def _has_ended(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Whether a process has ended, waiting so long for it."""
    if os.getppid() != _requester_pid:
        _exit_on_signal()  # nobody wants the outcome any more
    if process.poll() is not None:
        return True
    handle = os.pidfd_open(process.pid)
    try:
        select.select([handle], [], [], timeout)
    finally:
        os.close(handle)
    return process.poll() is not None


def _is_answering(url: str) -> bool:
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        # A proxy of the environment has no business here.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=5) as answer:
            return bool(200 <= answer.status < 300)
    return False
