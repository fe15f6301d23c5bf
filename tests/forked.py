"""`unfix` in a fork of a process that has imported it: most of a short command is its imports.

    python tests/forked.py SOCKET

A command has its own environment, folder, streams and end, as if it had been started.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
UNFIX = [sys.executable, "-m", "harness"]
IMPORTED = (
    "harness.adopt",
    "harness.bisect",
    "harness.cli",
    "harness.fuzz",
    "harness.history",
    "harness.matrix",
    "harness.mutate",
    "harness.prove",
    "harness.registry",
    "harness.releases",
    "harness.store",
    "reports",
)
_MOST = 1 << 18  # bytes of a command and its environment


def run(
    command: list[str], cwd: Path, env: dict[str, str], timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with its output captured, for `unfix` and for scripts that call it."""
    told = {"words": command[1:], "cwd": str(cwd), "env": env}
    pipes = [os.pipe() for _ in ("out", "err", "end")]
    said: list[bytes] = [b""] * len(pipes)

    def listen(place: int) -> None:
        with open(pipes[place][0], "rb", buffering=0) as end:
            for part in iter(lambda: end.read(1 << 16), b""):
                said[place] += part

    ears = [threading.Thread(target=listen, args=(place,), daemon=True) for place in (0, 1, 2)]
    socket.send_fds(_server(), [json.dumps(told).encode()], [write for _, write in pipes])
    for (_, write), ear in zip(pipes, ears, strict=True):
        os.close(write)
        ear.start()
    for ear in ears:
        ear.join(timeout)
    pid, _, code = said[2].decode().partition(" ")
    if any(ear.is_alive() for ear in ears):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
        raise subprocess.TimeoutExpired(command, timeout, *said[:2])
    return subprocess.CompletedProcess(command, int(code), said[0].decode(), said[1].decode())


@functools.cache
def _server() -> socket.socket:
    """One for this process; it ends when nobody holds our end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno())]
    served = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=served)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# In the server


def serve(line: socket.socket) -> dict[str, Any]:
    """Fork for each command; comes back in the fork, with what it was told."""
    while True:
        told, ends, _, _ = socket.recv_fds(line, _MOST, 3)
        if not told:
            os._exit(0)
        if not os.fork():
            break
        for end in ends:
            os.close(end)
        _reap()
    line.close()
    out, err, end = ends
    pid = os.fork()
    if pid:
        os.close(out)
        os.close(err)
        os.write(end, f"{pid} ".encode())
        _, status = os.waitpid(pid, 0)
        os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    os.close(end)
    for number, stream in ((1, out), (2, err)):
        os.dup2(stream, number)
        os.close(stream)
    return dict(json.loads(told))


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    plain = sys.path[1:]
    sys.path[0] = str(PROJECT)
    for name in IMPORTED:
        package = importlib.import_module(name)
        for _, module, _ in pkgutil.walk_packages(package.__path__, f"{name}."):
            with contextlib.suppress(ImportError):  # of a release's own Python
                importlib.import_module(module)
    importlib.import_module("harness.registry.catalogue").load()  # a fork need not read it again
    gc.collect()
    gc.freeze()
    told = serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(told["env"])
    os.chdir(told["cwd"])
    sys.path[:] = [told["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(":")), *plain]
    importlib.invalidate_caches()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    what, *words = told["words"]
    if what == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = [what, *words[1:]]
        exec(words[0], {"__name__": "__main__"})
    else:
        sys.path[0] = str(Path(what).parent)
        sys.argv = [what, *words]
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    main()
