"""One attempt at a cell, on the machine that runs it: its release, its process, its log.

This machine and the nodes of a cluster share this code, so that both give the same outcome.
"""

from __future__ import annotations

import datetime
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from harness.core import paths, process_exit, processes
from harness.core.child_process import ProcessHandle
from harness.core.outcomes import Outcome
from harness.patching.child_environment import ChildEnvironment
from harness.runs.matrix import exit_outcome, release_setup
from harness.store.matrix.values import CellAttempt
from harness.workers import command_supervisor
from harness.workers.command_supervisor import CommandRequest
from harness.workers.servers import orphans

POLL_SECONDS = 0.2  # seconds between two checks of the stop event
SUPERVISOR_GRACE_SECONDS = 5.0  # seconds for a supervisor to end its command


class CellTask(msgspec.Struct, frozen=True):
    """The data to run a cell once, on any machine."""

    run_id: str
    cell_id: str
    attempt_number: int
    command: list[str]
    environment: dict[str, str]
    time_limit: float
    log_folder: str  # the log's folder on the machine that started the run
    started_in: str  # the folder in which the run started
    release: str = ""  # the managed release that it needs
    cpus: float = 1.0
    gpus: float = 0.0
    install_command: list[str] = []  # installs a release; its name follows


class AttemptStopped(Exception):
    """Raised when the run ends during an attempt, so that its outcome is unknown."""


def run_attempt(task: CellTask, folder: Path, stop: threading.Event | None = None) -> CellAttempt:
    """Run the attempt with its log in this folder."""
    started = get_timestamp()
    folder.mkdir(parents=True, exist_ok=True)
    rotate_log(folder, task.attempt_number)
    log = folder / "log"
    log.touch()
    failure = ""
    if task.release:
        failure = release_setup.prepare_release(
            task.release, task.run_id, task.install_command, log
        )
    if failure:
        return CellAttempt(
            task.attempt_number,
            Outcome.NOT_READY,
            failure,
            started,
            where=socket.gethostname(),
            output=processes.read_log_tail(log, exit_outcome.LOG_TAIL_BYTES),
            last=True,
        )
    outcome, how, seconds = _run_supervised(task, folder, stop)
    printed = exit_outcome.read_printed_json(log) if "--json" in task.command else None
    if printed and exit_outcome.is_contradicted(outcome, printed):
        outcome, how = Outcome.FAILED, f"{how}, and yet its --json says that it is not green"
    return CellAttempt(
        task.attempt_number,
        outcome,
        how,
        started,
        seconds,
        seconds * task.gpus,
        socket.gethostname(),
        processes.read_log_tail(log, exit_outcome.LOG_TAIL_BYTES),
        exit_outcome.count_verdicts(printed) if printed else {},
    )


def get_timestamp() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def rotate_log(folder: Path, attempt_number: int) -> None:
    """Rename the log of the attempt before, as `log.1` for the first."""
    if (folder / "log").exists():
        os.replace(folder / "log", folder / f"log.{attempt_number - 1}")


def _run_supervised(
    task: CellTask, folder: Path, stop: threading.Event | None
) -> tuple[Outcome, str, float]:
    """Return the outcome, its description, and the seconds that the command ran."""
    begun = time.monotonic()
    command_supervisor.write_request(folder, _make_request(task, folder))
    words = [str(folder), str(os.getpid()), command_supervisor.SHIELDED]
    supervisor = subprocess.Popen(
        [sys.executable, "-P", "-m", command_supervisor.MODULE, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        error = _wait_for_supervisor(supervisor, stop)
        ended = command_supervisor.read_exit(folder)
        if ended is not None:
            return *exit_outcome.judge_exit(ended, task.time_limit), ended.seconds
        orphans.kill_orphans(f"matrix {task.run_id} {task.cell_id}", folder / "log")
        if supervisor.returncode < 0:
            reason = (
                f"its supervisor was killed: {process_exit.describe_code(supervisor.returncode)}"
            )
            return Outcome.LOST, reason, time.monotonic() - begun
        raise OSError(f"cell {task.cell_id} could not be supervised: {error}")
    finally:
        if supervisor.poll() is None:
            supervisor.kill()
            supervisor.wait()
            orphans.kill_orphans(f"matrix {task.run_id} {task.cell_id}", folder / "log")
        if supervisor.stderr is not None:
            supervisor.stderr.close()
        for name in (command_supervisor.REQUEST_FILE, command_supervisor.EXIT_FILE):
            (folder / name).unlink(missing_ok=True)


def _wait_for_supervisor(supervisor: subprocess.Popen[bytes], stop: threading.Event | None) -> str:
    """Wait for the end; return the last line of its stderr, the reason of a failure."""
    assert supervisor.stderr is not None
    handle = ProcessHandle(supervisor.pid)
    while not handle.wait_for_exit(POLL_SECONDS):
        if stop is not None and stop.is_set():
            handle.send_signal(signal.SIGTERM)
            handle.wait_for_exit(SUPERVISOR_GRACE_SECONDS)
            raise AttemptStopped
    lines = supervisor.communicate()[1].decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _make_request(task: CellTask, folder: Path) -> CommandRequest:
    working_folder = Path(task.started_in)
    if not working_folder.is_dir():
        working_folder = paths.workspace_folder()
    return CommandRequest(
        command=resolve_command(task.command),
        environment=build_environment(task),
        seconds=task.time_limit,
        output=str((folder / "log").resolve()),
        working_folder=str(working_folder),
    )


def resolve_command(command: list[str]) -> list[str]:
    """Resolve the command: `unfix` becomes this Python and this package."""
    if command[0] == "unfix":
        return [sys.executable, "-m", "harness", *command[1:]]
    return command


def build_environment(task: CellTask) -> ChildEnvironment:
    """Build the variables of the cell and the machine, without those of a Ray worker."""
    environment = ChildEnvironment(without=[name for name in os.environ if name.startswith("RAY_")])
    programs = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join((programs, environment.get("PATH", os.defpath)))
    # As Ray does for its tasks: no more threads than CPUs, and no GPU for a cell that needs none.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, int(task.cpus))))
    if not task.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    environment |= {"UNFIX_CELL": task.cell_id, "UNFIX_ATTEMPT": str(task.attempt_number)}
    environment.setdefault("UNFIX_HOME", str(paths.workspace_folder()))
    environment.update(task.environment)
    return environment
