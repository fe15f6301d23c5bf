"""Tests in processes of their own, and the supervisor between a test and its worker.

Invariant: nothing that a test does to itself, its parent or its children reaches the worker. The
supervisor, a fork of the worker, forks the test. It enforces the limits, sees how the test's
process ends, kills the processes that the test leaves behind, and replies to the worker. If a test
kills its supervisor, another one replaces it. A supervisor serves many tests, one at a time, so
that each test costs only one fork of a process with SGLang.

Example: a test with a limit of 5 s that sleeps gets SIGABRT after 5 s, so that faulthandler writes
its stacks, and SIGKILL 3 s later; its result is a HANG, "it did not end within 5 s".
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from harness.core import child_process, paths, process_exit, processes
from harness.core.child_process import ProcessHandle
from harness.core.files import write_atomically
from harness.core.outcomes import Outcome
from harness.core.pipes import PipeEnd
from harness.core.process_exit import ProcessExit
from harness.fixes.patch_plan import Direction
from harness.patching import attestation, bootstrap, live_engine
from harness.store.prove.values import SideResult
from harness.workers.messages import TestRequest
from harness.workers.run_folder import RunFolder

POLL_INTERVAL = 0.1  # seconds between two readings of the memory
HANG_DUMP_TIMEOUT = 3.0  # seconds for a hanging process to write its stacks
MAX_OUTPUT_BYTES = 8000  # the limit of a test's stored output
INTERNAL_FAILURE_EXIT_CODE = 70  # the code of a process that failed outside of its test
NO_RESULT_HEADLINE = "its process could not write its result"
GUARDED_FOLDER = str(paths.HARNESS_FOLDER / "startup" / "guarded")
UNTOGGLED_NOTE = "imported-without-toggles"  # written by `startup/guarded`
UNTOGGLED_HEADLINE = (
    "a Python that it started imported SGLang without the toggle, which is live in the guard's own "
    "process and its forks alone"
)


@dataclass(frozen=True)
class TestFiles:
    """One request, and the files that its processes write."""

    folder: Path
    request: TestRequest
    toggles: dict[str, str]  # the test's toggles, each with its direction
    run_folder: RunFolder | None = None  # all that the test may write; None: no limits

    def build_path(self, kind: str) -> Path:
        if self.run_folder is not None:
            return self.run_folder.path / kind  # the same for each run
        return self.folder / f"{self.request.serial}.{kind}"


class Supervisor:
    """A supervisor as its worker sees it."""

    def __init__(self, process: ProcessHandle, pipe: PipeEnd) -> None:
        self.process = process
        self.pipe = pipe
        self.pending_request: Any = None  # the request without a reply so far
        self.is_retiring = False  # it gets no further request
        self.kind: object = None  # it serves requests of this kind alone

    def describe_exit(self) -> str:
        """Describe the supervisor's end, once its pipe is closed."""
        self.pipe.close()
        return process_exit.describe_code(self.process.reap())


def fork_supervisor(serve: Callable[[PipeEnd], None]) -> Supervisor:
    """Fork a supervisor that serves its end of a pipe until the worker closes the other end."""

    def serve_in_fork(pipe: PipeEnd) -> None:
        processes.adopt_orphans()
        gc.disable()  # a collection would copy the pages that the tests share
        serve(pipe)

    return Supervisor(*child_process.fork_with_pipe(serve_in_fork, new_session=True))


def make_lost_result(exit_description: str) -> SideResult:
    """Make the result of a test whose supervisor ended."""
    headline = f"the test's supervisor ended: {exit_description}"
    return SideResult("", Outcome.LOST, headline=headline)


def make_exit_result(ended: ProcessExit) -> SideResult:
    """Make the result of a test whose process ended without one."""
    if ended.kind in (Outcome.PASSED, Outcome.EXITED):
        headline = f"it ended its process with {ended.words}"
        return SideResult("", Outcome.EXITED, headline=headline)
    return SideResult("", ended.kind, headline=ended.words)


class RunningTest(Protocol):
    """A test that runs in a process below this supervisor."""

    def wait_for_exit(self, seconds: float) -> bool: ...

    def send_signal(self, signal_number: int) -> None: ...

    def reap(self) -> int:
        """Return the exit code of the test's process; 0 if it has ended the test and goes on."""
        ...


def run_supervised_test(test: Callable[[], SideResult], files: TestFiles) -> SideResult:
    """Run a test in a process of its own and make its result, whatever the test does."""
    run = partial(_run_in_test_process, test, files)
    return supervise_test(
        lambda: child_process.fork_process(run, failure_code=INTERNAL_FAILURE_EXIT_CODE),
        files,
        lambda: processes.kill_descendants(os.getpid()),
    )


def supervise_test(
    start: Callable[[], RunningTest],
    files: TestFiles,
    clean_up: Callable[[], int],
    spared: Collection[int] = (),
) -> SideResult:
    """Start a test, enforce its limits and make its result, whatever the test does.

    `clean_up` kills the processes that the test has left, and returns their number. `spared` are
    children of this supervisor that are no part of the test.
    """
    begun = time.monotonic()
    if files.run_folder is not None:
        files.run_folder.prepare()
    attestations = files.build_path("attestations")
    live_engine.engine.recorder.set_folder(attestations)
    os.environ[bootstrap.ATTESTATIONS_VARIABLE] = str(attestations)
    watch_started_processes()
    oom_kills = processes.count_oom_kills()
    resident = _sum_over_descendants(processes.read_resident_bytes, spared)
    inherited_bytes = max(processes.read_resident_bytes(os.getpid()), resident)
    private_bytes = _sum_over_descendants(processes.read_private_bytes, spared)
    gc.freeze()
    child = start()
    started = time.monotonic()
    exceeded = _wait_within_limits(child, files.request, inherited_bytes, private_bytes, spared)
    code = child.reap()
    leftover_count = clean_up()
    if files.run_folder is not None:
        files.run_folder.keep_kernels()
    output = processes.read_log_tail(files.build_path("out"), MAX_OUTPUT_BYTES).strip()
    output = paths.shorten_release_paths(output)
    try:
        result = msgspec.json.decode(files.build_path("result").read_bytes(), type=SideResult)
    except (OSError, msgspec.MsgspecError):
        result = None
    if result is None or code or exceeded:
        if code == INTERNAL_FAILURE_EXIT_CODE and not exceeded:
            result = SideResult("", Outcome.ERROR, headline=NO_RESULT_HEADLINE)
        else:
            was_oom_kill = processes.count_oom_kills() > oom_kills
            ended = process_exit.describe_exit(code, killed_by_kernel=was_oom_kill, **exceeded)
            result = make_exit_result(ended)
        result.seconds = time.monotonic() - started
    if (attestations / UNTOGGLED_NOTE).exists() and _is_changed(files.toggles):
        result = SideResult("", Outcome.ERROR, headline=UNTOGGLED_HEADLINE)
    attested = attestation.read_attestations(attestations)
    result.ran = {
        toggle: sum(each.reach(toggle, direction) for each in attested)
        for toggle, direction in files.toggles.items()
    }
    result.reach = sum(result.ran.values())
    result.left = leftover_count
    if result.outcome in (Outcome.PASSED, Outcome.NA):
        result.output = ""
    elif result.detail:
        result.output = output
    else:
        result.detail, result.output = output, ""  # it ends with the stacks of faulthandler
    result.overhead = max(0.0, time.monotonic() - begun - result.total_seconds)
    return result


def _sum_over_descendants(measure: Callable[[int], int], spared: Collection[int]) -> int:
    """Measure the processes that run before a test starts: only a shared one does."""
    return sum(map(measure, processes.iterate_descendants(os.getpid(), spared)))


def watch_started_processes() -> None:
    """Have each Python that this process starts note an import of SGLang without toggles."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([GUARDED_FOLDER, *filter(None, path)]))


def _is_changed(toggles: dict[str, str]) -> bool:
    return any(direction != Direction.OBSERVE.value for direction in toggles.values())


def delete_test_files(folder: Path, serial: int) -> None:
    """Delete the files and folders of a run that is repeated, its attestations among them."""
    for path in folder.glob(f"{serial}.*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _run_in_test_process(test: Callable[[], SideResult], files: TestFiles) -> None:
    """Run the test in its own process, and write its result."""
    enter_test_process()
    redirect_output(files)
    if files.run_folder is not None:
        files.run_folder.enter()
    else:
        # pytest's `tmp_path` lies in a folder that is deleted with the run.
        files.build_path("tmp").mkdir()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(files.build_path("tmp"))
    processes.limit_forks(files.request.fork_limit)
    run_and_write_result(test, files)


def enter_test_process() -> None:
    """Prepare a process that runs tests, after its fork."""
    gc.enable()
    processes.volunteer_for_oom_kill()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def redirect_output(files: TestFiles) -> int:
    """Append what this process writes, and its stacks if it dies, to the test's output."""
    output = child_process.redirect_output(files.build_path("out"))
    faulthandler.enable(output)
    return output


def run_and_write_result(test: Callable[[], SideResult], files: TestFiles) -> None:
    test_pid = os.getpid()
    result = test()
    if os.getpid() != test_pid:  # in a fork by the test that did not exit
        os._exit(INTERNAL_FAILURE_EXIT_CODE)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    write_atomically(files.build_path("result"), msgspec.json.encode(result))


def _wait_within_limits(
    child: RunningTest,
    request: TestRequest,
    inherited_bytes: int,
    private_bytes: int,
    spared: Collection[int],
) -> dict[str, Any]:
    """Wait for the test's process, or kill it at a limit; return the exceeded limit, if any."""
    deadline = time.monotonic() + request.seconds
    while not child.wait_for_exit(POLL_INTERVAL):
        # Daemons of the test count: they are children of this subreaper.
        descendants = list(processes.iterate_descendants(os.getpid(), spared))
        used = sum(map(processes.read_resident_bytes, descendants)) - inherited_bytes
        # Each process counts the pages that it shares with its parent, so measure exactly
        # before killing.
        if used > request.memory:
            used = sum(map(processes.read_private_bytes, descendants)) - private_bytes
        if used > request.memory:
            child.send_signal(signal.SIGKILL)
            return {"exceeded_bytes": request.memory}
        if time.monotonic() > deadline:
            child.send_signal(signal.SIGABRT)  # faulthandler writes the stacks of all threads
            if not child.wait_for_exit(HANG_DUMP_TIMEOUT):
                child.send_signal(signal.SIGKILL)
            return {"exceeded_seconds": request.seconds}
    return {}
