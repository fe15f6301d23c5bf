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

from harness import processes
from harness.stops import STOPS

LOOK = 0.1
GRACE = 3.0  # seconds for a server to end by itself
_wanted_by = 0  # the process that waits for the outcome


def start(file: Path) -> int:
    """Begin a run, in a fork; gives its pid."""
    parent = os.getpid()
    # Until it has its own, the fork must not take the search's way to stop.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    code = 1
    try:
        os.setsid()
        for one in STOPS:
            signal.signal(one, _stop)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        main(file, parent)
        code = 0
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main(file: Path, parent: int) -> None:
    global _wanted_by
    _wanted_by = parent
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, _stop)
    specification = json.loads(file.read_text())
    started = time.monotonic()
    try:
        seen = _run(specification)
    finally:
        processes.end_all_below(os.getpid())
    seen["seconds"] = time.monotonic() - started
    temporary = file.with_suffix(".part")
    temporary.write_text(json.dumps(seen))
    os.replace(temporary, file.with_suffix(".seen"))


def _stop(*_: Any) -> None:
    raise SystemExit(1)


def _run(asked: dict[str, Any]) -> dict[str, Any]:
    ends = time.monotonic() + asked["seconds"]
    with open(asked["output"], "ab") as output:
        server = None
        if asked["serve"]:
            if _answers(asked["ready"]):
                return {"how": "taken"}
            server = _start(asked, asked["serve"], output)
            while not _answers(asked["ready"]):
                if _ended(server, LOOK):
                    return {"how": "server", "code": server.wait(), "when": "before it was ready"}
                if time.monotonic() > ends:
                    return {"how": "hang", "when": "the server was not ready"}
        try:
            command = _start(asked, asked["command"], output)
        except OSError as error:
            return {"how": "missing", "error": str(error)}
        while not _ended(command, LOOK):
            if time.monotonic() > ends:
                return {"how": "hang", "when": "it did not end"}
            if server is not None and _ended(server, 0):
                return {"how": "server", "code": server.wait(), "when": "while it was asked"}
        if server is not None and not _ended(server, 0):
            server.send_signal(signal.SIGTERM)
            _ended(server, GRACE)
    return {"how": "ended", "code": command.wait()}


def _start(asked: dict[str, Any], words: list[str] | str, output: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        shell=isinstance(words, str),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=asked["folder"],
        env=asked["environment"],
    )


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process has ended, waiting so long for it."""
    if os.getppid() != _wanted_by:
        _stop()  # nobody wants the outcome any more
    if process.poll() is not None:
        return True
    handle = os.pidfd_open(process.pid)
    try:
        select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
    return process.poll() is not None


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        # A proxy of the environment has no business here.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=5) as answer:
            return bool(200 <= answer.status < 300)
    return False
