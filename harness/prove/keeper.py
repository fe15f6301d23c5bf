"""One test in a process of its own, and the one that looks after it.

The keeper stands between the worker and the test: it knows the limits, sees how the test's process
ended, ends what that left behind, and says so. Nothing that a test does to itself or to its parent
reaches the worker.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from harness.patching import attestation, boot, live
from harness.prove import processes
from harness.prove.messages import Order
from harness.store.records import Outcome, Side

LOOK = 0.1  # seconds between two looks at the memory
GRACE = 3.0  # seconds for a hanging process to say where it hangs
SIGNALS = {
    signal.SIGSEGV: (Outcome.SEGFAULT, "segmentation fault"),
    signal.SIGBUS: (Outcome.SEGFAULT, "bus error"),
    signal.SIGABRT: (Outcome.ABORT, "aborted"),
}
OUTPUT = 8000  # characters kept


def start(test: Callable[[], Side], order: Order, folder: Path, toggle: str) -> int:
    """Fork a keeper; gives its pid. What came of the test will lie in `result_file`."""
    server = os.getpid()
    attestations = folder / f"{order.number}.attestations"
    live.engine.recorder.leave_in(attestations)
    os.environ[boot.ATTESTATIONS] = str(attestations)
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        processes.die_with(server)
        os.setsid()
        processes.adopt_orphans()
        _write(result_file(folder, order.number), _keep(test, order, folder, toggle))
        code = 0
    except BaseException as error:
        os.write(2, f"unfix: the keeper of {order.number} failed: {error!r}\n".encode())
    finally:
        os._exit(code)


def result_file(folder: Path, number: int) -> Path:
    return folder / f"{number}.json"


def read(folder: Path, number: int, status: int) -> Side:
    """What a keeper found, or that somebody ended it."""
    try:
        return msgspec.json.decode(result_file(folder, number).read_bytes(), type=Side)
    except (OSError, msgspec.MsgspecError):
        how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        return Side(
            "", Outcome.LOST, headline=f"the process that looked after the test was ended: {how}"
        )


def _keep(test: Callable[[], Side], order: Order, folder: Path, toggle: str) -> Side:
    kills = processes.killed_for_memory()
    inherited = processes.resident(os.getpid())
    said, output = folder / f"{order.number}.said", folder / f"{order.number}.out"
    keeper = os.getpid()
    pid = os.fork()
    if not pid:
        _be_the_test(test, keeper, said, output)
    started = time.monotonic()
    limit = _wait(pid, order, inherited)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    left = processes.end_all_below(keeper)
    try:
        side = msgspec.json.decode(said.read_bytes(), type=Side)
    except (OSError, msgspec.MsgspecError):
        side = None
    if side is None or code or limit:
        side = _died(code, limit, order, kills)
        side.seconds = time.monotonic() - started
    attested = attestation.read(folder / f"{order.number}.attestations")
    side.reach = sum(found.reach(toggle) for found in attested)
    side.left = left
    text = _tail(output)
    if side.outcome in (Outcome.PASSED, Outcome.NA):
        side.output = ""
    elif side.detail:
        side.output = text
    else:
        side.detail, side.output = text, ""  # where it died, said by faulthandler
    return side


def _be_the_test(test: Callable[[], Side], keeper: int, said: Path, output: Path) -> None:
    """In the test's own process: run it, write what it says, end without a farewell."""
    try:
        processes.die_with(keeper)
        processes.offer_to_the_kernel()
        null = os.open(os.devnull, os.O_RDONLY)
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        faulthandler.enable(os.dup(out))
        side = test()
        sys.stdout.flush()
        sys.stderr.flush()
        _write(said, side)
        os._exit(0)
    except BaseException as error:
        os.write(2, f"unfix: {error!r}\n".encode())
    finally:
        os._exit(70)


def _wait(pid: int, order: Order, inherited: int) -> Outcome | None:
    """Until the test's process ended, or was ended at a limit: then which."""
    handle = os.pidfd_open(pid)
    ends = time.monotonic() + order.seconds
    while not select.select([handle], [], [], LOOK)[0]:
        used = processes.resident(pid) - inherited
        used += sum(processes.resident(child) for child in processes.below(pid))
        if used > order.memory:
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
    if code >= 0:
        return Side("", Outcome.EXITED, headline=f"it ended its process with exit code {code}")
    if code == -signal.SIGKILL and processes.killed_for_memory() > kills:
        return Side("", Outcome.OUT_OF_MEMORY, headline="the kernel killed it: out of memory")
    name = signal.Signals(-code).name
    outcome, words = SIGNALS.get(signal.Signals(-code), (Outcome.KILLED, "killed"))
    return Side("", outcome, headline=f"{words} ({name})")


def _write(file: Path, side: Side) -> None:
    """Whole or not at all."""
    temporary = file.with_suffix(file.suffix + ".part")
    temporary.write_bytes(msgspec.json.encode(side))
    os.replace(temporary, file)


def _tail(file: Path) -> str:
    try:
        return file.read_text(errors="replace")[-OUTPUT:].strip()
    except OSError:
        return ""
