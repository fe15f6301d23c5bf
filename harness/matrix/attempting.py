"""One attempt at a cell, on the machine that runs it: its release, its process, its log.

The same on this machine and on a node of a cluster, so that both give the same outcome.
"""

from __future__ import annotations

import datetime
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from harness import paths, processes
from harness.matrix import outcomes, preparing
from harness.serving import leftovers
from harness.store.matrix.values import Attempt, Outcome

LOOK = 0.2  # seconds between two looks at whether it is still wanted
GRACE = 5.0  # seconds for a supervisor to end what it runs


class Task(msgspec.Struct, frozen=True):
    """What is needed to run a cell once, anywhere."""

    run: str
    cell: str
    number: int
    command: list[str]
    environment: dict[str, str]
    limit: float
    folder: str  # for its log, on the machine that started the run
    here: str  # where that was started
    release: str = ""  # the managed release that it needs
    cpus: float = 1.0
    gpus: float = 0.0
    adding: list[str] = []  # words that install a release, its name behind them


class Stopped(Exception):
    """The run is over; what this attempt would have come to is not known."""


def attempt(task: Task, folder: Path, stop: threading.Event | None = None) -> Attempt:
    """Run it with its log in this folder."""
    started = now()
    folder.mkdir(parents=True, exist_ok=True)
    _keep_the_one_before(folder, task.number)
    log = folder / "log"
    log.touch()
    why = preparing.why_not(task.release, task.run, task.adding, log) if task.release else ""
    if why:
        return Attempt(
            task.number,
            Outcome.NOT_READY,
            why,
            started,
            where=socket.gethostname(),
            output=processes.said_last(log, outcomes.TAIL),
            last=True,
        )
    outcome, how, seconds = _supervised(task, folder, stop)
    found = outcomes.printed(log) if "--json" in task.command else None
    if found and outcomes.contradicted(outcome, found):
        outcome, how = Outcome.RED, f"{how}, and yet its --json says that it is not green"
    return Attempt(
        task.number,
        outcome,
        how,
        started,
        seconds,
        seconds * task.gpus,
        socket.gethostname(),
        processes.said_last(log, outcomes.TAIL),
        outcomes.inside(found) if found else {},
    )


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _keep_the_one_before(folder: Path, number: int) -> None:
    if (folder / "log").exists():
        os.replace(folder / "log", folder / f"log.{number - 1}")


def _supervised(
    task: Task, folder: Path, stop: threading.Event | None
) -> tuple[Outcome, str, float]:
    """How it ended, in words, and after how many seconds of its own."""
    begun = time.monotonic()
    specification = folder / "asked.json"
    seen = specification.with_suffix(".seen")
    seen.unlink(missing_ok=True)
    specification.write_text(json.dumps(_asked(task, folder)))
    here = str(os.getpid())
    supervisor = subprocess.Popen(
        [sys.executable, "-P", "-m", "harness.matrix.supervise", str(specification), here],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        error = _wait(supervisor, stop)
        if seen.exists():
            saw = json.loads(seen.read_text())
            return *outcomes.judged(saw, task.limit), float(saw["seconds"])
        leftovers.end_all(f"matrix {task.run} {task.cell}", folder / "log")
        if supervisor.returncode < 0:
            name = processes.signal_name(-supervisor.returncode)
            why = f"what looked after it was killed: {name}"
            return Outcome.LOST, why, time.monotonic() - begun
        raise OSError(f"cell {task.cell} could not be looked after: {error}")
    finally:
        if supervisor.poll() is None:
            supervisor.kill()
            supervisor.wait()
            leftovers.end_all(f"matrix {task.run} {task.cell}", folder / "log")
        if supervisor.stderr is not None:
            supervisor.stderr.close()
        for file in (specification, seen):
            file.unlink(missing_ok=True)


def _wait(supervisor: subprocess.Popen[bytes], stop: threading.Event | None) -> str:
    """Until it has ended; gives the last line that it said, which is why it could not do it."""
    assert supervisor.stderr is not None
    handle = os.pidfd_open(supervisor.pid)
    try:
        while not select.select([handle], [], [], LOOK)[0]:
            if stop is not None and stop.is_set():
                supervisor.send_signal(signal.SIGTERM)
                select.select([handle], [], [], GRACE)
                raise Stopped
    finally:
        os.close(handle)
    said = supervisor.communicate()[1].decode(errors="replace").strip()
    return said.splitlines()[-1] if said else ""


def _asked(task: Task, folder: Path) -> dict[str, Any]:
    here = Path(task.here)
    return {
        "command": words(task.command),
        "environment": environment(task),
        "seconds": task.limit,
        "output": str((folder / "log").resolve()),
        "folder": str(here if here.is_dir() else paths.workspace()),
        "serve": None,
        "ready": "",
    }


def words(command: list[str]) -> list[str]:
    """`unfix` is this one, wherever its script lies."""
    if command[0] == "unfix":
        return [sys.executable, "-m", "harness", *command[1:]]
    return command


def environment(task: Task) -> dict[str, str]:
    """The machine's, without what a cluster put in for its own worker, and the cell's."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    programs = str(Path(sys.executable).parent)
    found["PATH"] = os.pathsep.join((programs, found.get("PATH", os.defpath)))
    # As a cluster has it for its tasks: no more threads than CPUs asked for, no GPU unasked for.
    found.setdefault("OMP_NUM_THREADS", str(max(1, int(task.cpus))))
    if not task.gpus:
        found["CUDA_VISIBLE_DEVICES"] = ""
    found |= {"UNFIX_CELL": task.cell, "UNFIX_ATTEMPT": str(task.number)}
    found.setdefault("UNFIX_HOME", str(paths.workspace()))
    return found | task.environment
