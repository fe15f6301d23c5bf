"""Tests in processes of their own, and the one that looks after them.

A keeper stands between the worker and a test: it knows the limits, sees how the test's process
ended, ends what that left behind, and says so. Nothing that a test does to itself or to its parent
reaches the worker; a keeper that a test has ended is followed by another one. It lives for many
tests, one at a time: each of them is then one fork of a process that holds SGLang, and not two.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.core import processes
from harness.core.pipes import PipeEnd
from harness.patching import attestation, bootstrap, live_engine
from harness.store.prove.values import SideOutcome, SideResult
from harness.workers.messages import TestRequest

POLL_INTERVAL = 0.1  # seconds between two looks at the memory
HANG_DUMP_TIMEOUT = 3.0  # seconds for a hanging process to say where it hangs
OUTCOME_OF_SIGNAL: dict[int, tuple[SideOutcome, str]] = {
    signal.SIGSEGV: (SideOutcome.SEGFAULT, "segmentation fault"),
    signal.SIGBUS: (SideOutcome.SEGFAULT, "bus error"),
    signal.SIGABRT: (SideOutcome.ABORT, "aborted"),
    signal.SIGALRM: (SideOutcome.HANG, "it did not end in time"),
}
MAX_OUTPUT_BYTES = 8000  # bytes kept
INTERNAL_FAILURE_EXIT_CODE = 70  # the exit code of a test's process in which not the test failed
NO_RESULT_HEADLINE = "its process could not say what came of it"


@dataclass(frozen=True)
class TestFiles:
    """One order, and where its processes leave what they have to say."""

    folder: Path
    request: TestRequest
    toggles: dict[str, str]  # that the test is about, and in which direction each is

    def build_path(self, kind: str) -> Path:
        return self.folder / f"{self.request.serial}.{kind}"


class Supervisor:
    """One as its worker sees it: what it was told and has not answered is `wanted`."""

    def __init__(self, pid: int, pipe: PipeEnd) -> None:
        self.pid = pid
        self.pipe = pipe
        self.pending_request: Any = None
        self.is_retiring = False  # it is told nothing more

    def describe_exit(self) -> str:
        """Once its line is over: how it ended."""
        self.pipe.close()
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return processes.get_signal_name(-status) if status < 0 else f"exit code {status}"


def fork_supervisor(serve: Callable[[PipeEnd], None]) -> Supervisor:
    """Fork a keeper, which keeps what its line tells it to until that is over."""
    worker = os.getpid()
    there, write = os.pipe()
    read, back = os.pipe()
    pid = os.fork()
    if pid:
        os.close(there)
        os.close(back)
        return Supervisor(pid, PipeEnd(read, write))
    code = 1
    try:
        processes.die_with_parent(worker)
        os.setsid()
        processes.adopt_orphans()
        os.close(read)
        os.close(write)
        gc.disable()  # what it makes is for its tests: a collection there need not look at it
        serve(PipeEnd(there, back))
        code = 0
    except BaseException:
        os.write(2, f"unfix: a keeper failed: {traceback.format_exc()}\n".encode())
    finally:
        os._exit(code)


def make_lost_result(exit_description: str) -> SideResult:
    """What there is to say of a test when its keeper ended."""
    words = f"the process that looked after the test was ended: {exit_description}"
    return SideResult("", SideOutcome.LOST, headline=words)


def run_supervised_test(test: Callable[[], SideResult], files: TestFiles) -> SideResult:
    """Have a test run in a process of its own, and say what came of it."""
    begun = time.monotonic()
    attestations = files.build_path("attestations")
    live_engine.engine.recorder.set_folder(attestations)
    os.environ[bootstrap.ATTESTATIONS_VARIABLE] = str(attestations)
    kills = processes.count_oom_kills()
    inherited = processes.read_resident_bytes(os.getpid())
    keeper = os.getpid()
    gc.freeze()
    pid = os.fork()
    if not pid:
        _run_in_test_process(test, keeper, files)
    started = time.monotonic()
    limit = _wait_within_limits(pid, files.request, inherited)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    left = processes.kill_descendants(keeper)
    text = processes.read_log_tail(files.build_path("out"), MAX_OUTPUT_BYTES).strip()
    try:
        side = msgspec.json.decode(files.build_path("said").read_bytes(), type=SideResult)
    except (OSError, msgspec.MsgspecError):
        side = None
    if side is None or code or limit:
        side = _make_death_result(code, limit, files.request, kills)
        side.seconds = time.monotonic() - started
    attested = attestation.read_attestations(attestations)
    side.ran = {
        toggle: sum(found.reach(toggle, direction) for found in attested)
        for toggle, direction in files.toggles.items()
    }
    side.reach = sum(side.ran.values())
    side.left = left
    if side.outcome in (SideOutcome.PASSED, SideOutcome.NA):
        side.output = ""
    elif side.detail:
        side.output = text
    else:
        side.detail, side.output = text, ""  # where it died, said by faulthandler
    side.overhead = max(0.0, time.monotonic() - begun - side.total_seconds)
    return side


def _run_in_test_process(
    test: Callable[[], SideResult], supervisor_pid: int, files: TestFiles
) -> None:
    """In the test's own process: run it, write what it says, end without a farewell."""
    try:
        processes.die_with_parent(supervisor_pid)
        gc.enable()
        processes.volunteer_for_oom_kill()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDONLY)
        out = os.open(files.build_path("out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        faulthandler.enable(os.dup(out))
        # A folder of its own for pytest's `tmp_path`, which ends with the run.
        files.build_path("tmp").mkdir()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(files.build_path("tmp"))
        processes.limit_forks(files.request.fork_limit)
        here = os.getpid()
        side = test()
        if os.getpid() != here:
            os._exit(
                INTERNAL_FAILURE_EXIT_CODE
            )  # a process that the test forked and that did not end there
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        _write_result(files.build_path("said"), side)
        os._exit(0)
    except BaseException:
        os.write(2, f"unfix: {traceback.format_exc()}\n".encode())
    finally:
        os._exit(INTERNAL_FAILURE_EXIT_CODE)


def _wait_within_limits(pid: int, request: TestRequest, inherited_bytes: int) -> SideOutcome | None:
    """Until the test's process ended, or was ended at a limit: then which."""
    handle = os.pidfd_open(pid)
    ends = time.monotonic() + request.seconds
    while not select.select([handle], [], [], POLL_INTERVAL)[0]:
        # What a test's daemons hold counts, and they are the keeper's children.
        theirs = list(processes.iterate_descendants(os.getpid()))
        used = sum(processes.read_resident_bytes(child) for child in theirs) - inherited_bytes
        # Each fork seems to hold what it inherited: look closely before anything is ended.
        if (
            used > request.memory
            and sum(map(processes.read_private_bytes, theirs)) > request.memory
        ):
            os.kill(pid, signal.SIGKILL)
            return SideOutcome.OUT_OF_MEMORY
        if time.monotonic() > ends:
            os.kill(pid, signal.SIGABRT)  # faulthandler writes where every thread is
            if not select.select([handle], [], [], HANG_DUMP_TIMEOUT)[0]:
                os.kill(pid, signal.SIGKILL)
            return SideOutcome.HANG
    return None


def _make_death_result(
    code: int, limit: SideOutcome | None, request: TestRequest, oom_kills_before: int
) -> SideResult:
    if limit is SideOutcome.HANG:
        return SideResult("", limit, headline=f"it did not end within {request.seconds:g} s")
    if limit is SideOutcome.OUT_OF_MEMORY:
        return SideResult("", limit, headline=f"it took more than {request.memory / 2**30:.1f} GiB")
    if code == INTERNAL_FAILURE_EXIT_CODE:
        return SideResult("", SideOutcome.ERROR, headline=NO_RESULT_HEADLINE)
    if code >= 0:
        return SideResult(
            "", SideOutcome.EXITED, headline=f"it ended its process with exit code {code}"
        )
    if code == -signal.SIGKILL and processes.count_oom_kills() > oom_kills_before:
        return SideResult(
            "", SideOutcome.OUT_OF_MEMORY, headline="the kernel killed it: out of memory"
        )
    return make_signal_result(-code)


def make_signal_result(number: int) -> SideResult:
    """A death by signal, in words."""
    outcome, words = OUTCOME_OF_SIGNAL.get(number, (SideOutcome.KILLED, "killed"))
    return SideResult("", outcome, headline=f"{words} ({processes.get_signal_name(number)})")


def _write_result(file: Path, side: SideResult) -> None:
    """Whole or not at all."""
    temporary = file.with_suffix(file.suffix + ".part")
    temporary.write_bytes(msgspec.json.encode(side))
    os.replace(temporary, file)
