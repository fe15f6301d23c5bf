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

from harness import processes
from harness.lines import Line
from harness.patching import attestation, boot, live
from harness.prove.messages import Order
from harness.store.prove.values import Outcome, Side

LOOK = 0.1  # seconds between two looks at the memory
GRACE = 3.0  # seconds for a hanging process to say where it hangs
SIGNALS: dict[int, tuple[Outcome, str]] = {
    signal.SIGSEGV: (Outcome.SEGFAULT, "segmentation fault"),
    signal.SIGBUS: (Outcome.SEGFAULT, "bus error"),
    signal.SIGABRT: (Outcome.ABORT, "aborted"),
    signal.SIGALRM: (Outcome.HANG, "it did not end in time"),
}
OUTPUT = 8000  # bytes kept
OURS = 70  # the exit code of a test's process in which not the test failed
UNSAID = "its process could not say what came of it"


@dataclass(frozen=True)
class Place:
    """One order, and where its processes leave what they have to say."""

    folder: Path
    order: Order
    toggles: dict[str, str]  # that the test is about, and in which direction each is

    def file(self, kind: str) -> Path:
        return self.folder / f"{self.order.serial}.{kind}"


class Keeper:
    """One as its worker sees it: what it was told and has not answered is `wanted`."""

    def __init__(self, pid: int, line: Line) -> None:
        self.pid = pid
        self.line = line
        self.wanted: Any = None
        self.last = False  # it is told nothing more

    def ended(self) -> str:
        """Once its line is over: how it ended."""
        self.line.close()
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return processes.signal_name(-status) if status < 0 else f"exit code {status}"


def start(keep: Callable[[Line], None]) -> Keeper:
    """Fork a keeper, which keeps what its line tells it to until that is over."""
    worker = os.getpid()
    there, write = os.pipe()
    read, back = os.pipe()
    pid = os.fork()
    if pid:
        os.close(there)
        os.close(back)
        return Keeper(pid, Line(read, write))
    code = 1
    try:
        processes.die_with(worker)
        os.setsid()
        processes.adopt_orphans()
        os.close(read)
        os.close(write)
        gc.disable()  # what it makes is for its tests: a collection there need not look at it
        keep(Line(there, back))
        code = 0
    except BaseException:
        os.write(2, f"unfix: a keeper failed: {traceback.format_exc()}\n".encode())
    finally:
        os._exit(code)


def lost(how: str) -> Side:
    """What there is to say of a test when its keeper ended."""
    words = f"the process that looked after the test was ended: {how}"
    return Side("", Outcome.LOST, headline=words)


def keep(test: Callable[[], Side], place: Place) -> Side:
    """Have a test run in a process of its own, and say what came of it."""
    begun = time.monotonic()
    attestations = place.file("attestations")
    live.engine.recorder.leave_in(attestations)
    os.environ[boot.ATTESTATIONS] = str(attestations)
    kills = processes.killed_for_memory()
    inherited = processes.resident(os.getpid())
    keeper = os.getpid()
    gc.freeze()
    pid = os.fork()
    if not pid:
        _be_the_test(test, keeper, place)
    started = time.monotonic()
    limit = _wait(pid, place.order, inherited)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    left = processes.end_all_below(keeper)
    text = processes.said_last(place.file("out"), OUTPUT).strip()
    try:
        side = msgspec.json.decode(place.file("said").read_bytes(), type=Side)
    except (OSError, msgspec.MsgspecError):
        side = None
    if side is None or code or limit:
        side = _died(code, limit, place.order, kills)
        side.seconds = time.monotonic() - started
    attested = attestation.read(attestations)
    side.ran = {
        toggle: sum(found.reach(toggle, direction) for found in attested)
        for toggle, direction in place.toggles.items()
    }
    side.reach = sum(side.ran.values())
    side.left = left
    if side.outcome in (Outcome.PASSED, Outcome.NA):
        side.output = ""
    elif side.detail:
        side.output = text
    else:
        side.detail, side.output = text, ""  # where it died, said by faulthandler
    side.overhead = max(0.0, time.monotonic() - begun - side.looked)
    return side


def _be_the_test(test: Callable[[], Side], keeper: int, place: Place) -> None:
    """In the test's own process: run it, write what it says, end without a farewell."""
    try:
        processes.die_with(keeper)
        gc.enable()
        processes.offer_to_the_kernel()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDONLY)
        out = os.open(place.file("out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        faulthandler.enable(os.dup(out))
        # A folder of its own for pytest's `tmp_path`, which ends with the run.
        place.file("tmp").mkdir()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(place.file("tmp"))
        processes.allow_forks(place.order.forks)
        here = os.getpid()
        side = test()
        if os.getpid() != here:
            os._exit(OURS)  # a process that the test forked and that did not end there
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        _write(place.file("said"), side)
        os._exit(0)
    except BaseException:
        os.write(2, f"unfix: {traceback.format_exc()}\n".encode())
    finally:
        os._exit(OURS)


def _wait(pid: int, order: Order, inherited: int) -> Outcome | None:
    """Until the test's process ended, or was ended at a limit: then which."""
    handle = os.pidfd_open(pid)
    ends = time.monotonic() + order.seconds
    while not select.select([handle], [], [], LOOK)[0]:
        # What a test's daemons hold counts, and they are the keeper's children.
        theirs = list(processes.below(os.getpid()))
        used = sum(processes.resident(child) for child in theirs) - inherited
        # Each fork seems to hold what it inherited: look closely before anything is ended.
        if used > order.memory and sum(map(processes.owned, theirs)) > order.memory:
            os.kill(pid, signal.SIGKILL)
            return Outcome.OUT_OF_MEMORY
        if time.monotonic() > ends:
            os.kill(pid, signal.SIGABRT)  # faulthandler writes where every thread is
            if not select.select([handle], [], [], GRACE)[0]:
                os.kill(pid, signal.SIGKILL)
            return Outcome.HANG
    return None


def _died(code: int, limit: Outcome | None, order: Order, kills: int) -> Side:
    if limit is Outcome.HANG:
        return Side("", limit, headline=f"it did not end within {order.seconds:g} s")
    if limit is Outcome.OUT_OF_MEMORY:
        return Side("", limit, headline=f"it took more than {order.memory / 2**30:.1f} GiB")
    if code == OURS:
        return Side("", Outcome.ERROR, headline=UNSAID)
    if code >= 0:
        return Side("", Outcome.EXITED, headline=f"it ended its process with exit code {code}")
    if code == -signal.SIGKILL and processes.killed_for_memory() > kills:
        return Side("", Outcome.OUT_OF_MEMORY, headline="the kernel killed it: out of memory")
    return killed(-code)


def killed(number: int) -> Side:
    """A death by signal, in words."""
    outcome, words = SIGNALS.get(number, (Outcome.KILLED, "killed"))
    return Side("", outcome, headline=f"{words} ({processes.signal_name(number)})")


def _write(file: Path, side: Side) -> None:
    """Whole or not at all."""
    temporary = file.with_suffix(file.suffix + ".part")
    temporary.write_bytes(msgspec.json.encode(side))
    os.replace(temporary, file)
