"""A worker of the toy kind: each line is a serial and a word, which a fork of it carries out."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def serve_requests(read: int, write: int) -> None:
    start, forks = os.environ["TOY_START"], os.environ["TOY_FORKS"]
    if start == "dies":
        print("no such module", flush=True)  # a kill flushes nothing
        os.kill(os.getpid(), signal.SIGKILL)
    if start == "hangs":
        time.sleep(600)
    if start.startswith("await "):
        do_action(*start.split(), worker=os.getpid())
    os.write(write, b"ready\n")
    if start == "ends when idle":
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in os.fdopen(read, "r"):
        serial, _, word = line.strip().partition(" ")
        worker = os.getpid()
        if forks and os.fork():
            continue
        if outcome := do_action(*word.split(), worker=worker):
            os.write(write, f"{serial} {outcome}\n".encode())
        if forks:
            os._exit(0)


def do_action(verb: str, file: str = "", *rest: str, worker: int) -> str:
    if verb == "kill" or (verb == "kill-once" and not Path(file).exists()):
        if file:
            Path(file).touch()
        os.kill(worker, signal.SIGKILL)
        return ""
    if verb == "leave":  # as `sys.exit()` in a library would
        os._exit(0)
    if verb in ("hang", "await"):
        parent = os.getppid()  # nothing is left once it is gone
        while os.getppid() == parent and not (file and Path(file).exists()):
            time.sleep(0.01)
    if verb == "say":
        return "x" * int(file)
    return f"passed {time.monotonic()}"


if __name__ == "__main__":
    serve_requests(*map(int, sys.argv[1:]))
