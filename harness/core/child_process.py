"""Child processes by fork, and the end of processes: the one place for both.

Invariants. A forked child never returns into its parent's code: it runs one function and leaves by
`os._exit`, so nothing that the parent has buffered or has to clean up happens twice. It dies with
its parent unless the caller says otherwise. Exit codes are those of `subprocess`: a negative one is
the number of a signal.

Example: `call_in_fork(lambda: 6 * 7, cpu_seconds=2)` is 42. With `os.abort`, or with a loop that
takes more than two seconds of processor time, it is None.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core import processes
from harness.core.pipes import PipeEnd, make_pipe_pair, serve_ready

FAILURE_EXIT_CODE = 1


class ProcessHandle:
    """A process that can be waited for, by a `select` as well.

    Its descriptor is closed with the last reference: another thread may still wait on it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = -1
        self._pidfd = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._pidfd

    def wait_for_exit(self, seconds: float) -> bool:
        """Wait for the end, at most `seconds`; return whether the process has ended."""
        return serve_ready({self: lambda: None}, seconds)

    def send_signal(self, signal_number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal_number)

    def reap(self) -> int:
        """Wait for this child's end; return its exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """Close the descriptor, in a fork that does not wait for this process."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def __del__(self) -> None:
        self.close()


def fork_process(
    run: Callable[[], object],
    *,
    dies_with_parent: bool = True,
    new_session: bool = False,
    failure_code: int = FAILURE_EXIT_CODE,
) -> ProcessHandle:
    """Run a function in a fork, which ends with it.

    The exit code is 0, or `failure_code` if the function raised; then its traceback is on stderr.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return ProcessHandle(pid)
    code = failure_code
    try:
        if dies_with_parent:
            processes.die_with_parent(parent)
        if new_session:
            os.setsid()
        run()
        code = 0
    except SystemExit as stop:
        # A refusal in words is printed as Python itself would; a number would be lost.
        words = stop.code if isinstance(stop.code, str) else f"unfix: it called exit({stop.code})"
        os.write(2, f"{words}\n".encode())
    except BaseException:
        os.write(2, f"unfix: {traceback.format_exc()}\n".encode())
    finally:
        os._exit(code)


def fork_with_pipe(
    serve: Callable[[PipeEnd], object],
    *,
    new_session: bool = False,
) -> tuple[ProcessHandle, PipeEnd]:
    """Fork a child that serves its end of two pipes; return the parent's end."""
    ours, theirs = make_pipe_pair()

    def serve_in_child() -> None:
        ours.close()
        serve(theirs)

    child = fork_process(serve_in_child, new_session=new_session)
    theirs.close()
    return child, ours


def start_with_pipe(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[ProcessHandle, PipeEnd]:
    """Start a command with a pipe, as `fork_with_pipe` starts a function.

    The descriptors of its end are its last two arguments; its streams are this process's.
    """

    def become_command(pipe: PipeEnd) -> None:
        for descriptor in pipe.descriptors:
            os.set_inheritable(descriptor, True)
        os.execve(command[0], [*command, *map(str, pipe.descriptors)], environment)

    return fork_with_pipe(become_command)


def call_in_fork(work: Callable[[], Any], *, cpu_seconds: float = 0.0, silent: bool = False) -> Any:
    """Run `work` in a fork and return its result, as JSON; None if the fork dies or raises.

    `cpu_seconds` limits its processor time; `silent` discards what it writes to stderr.
    """

    def serve(pipe: PipeEnd) -> None:
        if silent:
            discard_stderr()
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        pipe.send(json.dumps(work()).encode())

    child, pipe = fork_with_pipe(serve)
    lines = list(pipe.iterate_lines())
    pipe.close()
    child.reap()
    return json.loads(lines[0]) if lines else None


def discard_stderr() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def redirect_output(log: Path) -> int:
    """Append this process's output to a log, and give it no input; return the log's descriptor."""
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if null > 2:
        os.close(null)
    return output


def end_process_group(
    process: subprocess.Popen[Any], grace_seconds: float, *, terminate: bool = False
) -> int:
    """End a process that leads its own group, by SIGKILL to all of it after a grace period.

    With `terminate` it gets SIGTERM first. Return its exit code.
    """
    if terminate and process.poll() is None:
        process.terminate()
    try:
        return process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        kill_process_group(process.pid)
        return process.wait()


def kill_process_group(leader: int) -> None:
    """Kill what is left of a group, by the id of the process that leads or led it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


class PipedProcess:
    """A started command with two pipes; their descriptors are its last two arguments."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        working_folder: Path | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.pipe, theirs = make_pipe_pair()
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [*command, *map(str, theirs.descriptors)],
                cwd=working_folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=theirs.descriptors,
                start_new_session=True,  # a Ctrl-C in the terminal does not reach it
            )
        theirs.close()

    def wait_or_kill(self, seconds: float) -> int:
        """Wait for its exit code; after `seconds`, kill its whole process group."""
        return end_process_group(self.process, seconds)
