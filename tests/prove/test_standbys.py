"""The standby of a process for many tests: it takes the place of one that ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.core import processes
from harness.core.child_process import ProcessHandle, call_in_fork, fork_with_pipe
from harness.core.outcomes import Outcome
from harness.core.pipes import PipeEnd
from harness.store.prove.values import SideResult
from harness.workers import messages, supervisor
from harness.workers.shared_process import SharedProcess, SharedProcessReady, SharedRunEnded

PASSES, DIES = b"passes", b"dies"
LIMIT = 64 << 20


class FakeProcesses:
    """Processes that a supervisor starts: each runs what its requests name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids: list[int] = []  # in the order of their starts
        self.behaviors: dict[int, Callable[[], None]] = {}  # by number, before it is ready
        self.free_share = 1.0
        self.serial = 0

    def start_process(self) -> tuple[ProcessHandle, PipeEnd]:
        begin = self.behaviors.get(len(self.pids), lambda: None)

        def serve(pipe: PipeEnd) -> None:
            begin()
            pipe.send(msgspec.json.encode(SharedProcessReady([], self.free_share)))
            for serial, line in enumerate(pipe.iterate_lines()):
                name, _, file = line.partition(b" ")
                if name == DIES:
                    os._exit(3)
                time.sleep(0.4 if serial == 0 else 0.0)  # for the limits to be looked at
                result = SideResult("", Outcome.PASSED, headline=str(os.getpid()))
                Path(file.decode()).write_bytes(msgspec.json.encode(result))
                pipe.send(msgspec.json.encode(SharedRunEnded("", [])))

        handle, pipe = fork_with_pipe(serve)
        self.pids.append(handle.pid)
        return handle, pipe

    def make_process(self) -> SharedProcess:
        return SharedProcess(self.start_process, [], standby_count=1)

    def run(self, process: SharedProcess, name: bytes) -> tuple[str, str]:
        """Run a request as a supervisor does; return its outcome, and the pid if it passed."""
        self.serial += 1
        request = messages.TestRequest(0, self.serial, 20.0, LIMIT)
        files = supervisor.TestFiles(self.folder, request, {})
        process.wait_until_ready()
        side = process.run(name + b" " + os.fsencode(files.build_path("result")), files)
        return side.outcome.value, side.headline


@pytest.fixture
def fakes(tmp_path: Path) -> FakeProcesses:
    return FakeProcesses(tmp_path)


def call_supervisor(work: Callable[[], Any]) -> Any:
    """Call a function in a process that adopts orphans, as a supervisor does."""

    def call() -> Any:
        processes.adopt_orphans()
        return work()

    return call_in_fork(call)


def test_a_standby_takes_the_place_of_a_process_that_ends(fakes: FakeProcesses) -> None:
    def run_three() -> list[Any]:
        process = fakes.make_process()
        died = fakes.run(process, DIES)
        before = list(fakes.pids)
        passed = fakes.run(process, PASSES)
        process.end()  # as for a request that needs a new one
        again = fakes.run(process, PASSES)
        return [died[0], passed, again, before, fakes.pids]

    died, passed, again, before, pids = call_supervisor(run_three)
    assert died == "exited"
    assert len(before) == 2  # the second one was started before the first one died
    assert passed == ["passed", str(pids[1])]
    assert again == ["passed", str(pids[2])]
    assert len(pids) == 4  # and each that was taken has a follower


def keep_memory() -> None:
    allocated = bytearray(3 * LIMIT)
    allocated[::4096] = b"x" * len(allocated[::4096])
    globals()["_kept"] = allocated


def test_the_memory_of_a_standby_is_not_the_tests(fakes: FakeProcesses) -> None:
    fakes.behaviors[1] = keep_memory

    def run_beside_standby() -> Any:
        return fakes.run(fakes.make_process(), PASSES)[0]

    assert call_supervisor(run_beside_standby) == "passed"


@pytest.mark.parametrize("when", ["at once", "when it is taken"])
def test_a_standby_that_dies_fails_no_test(fakes: FakeProcesses, when: str) -> None:
    taken = fakes.folder / "taken"

    def die() -> None:
        while when != "at once" and not taken.exists():
            time.sleep(0.01)
        os._exit(9)

    fakes.behaviors[1] = die

    def run_two() -> list[Any]:
        process = fakes.make_process()
        died = fakes.run(process, DIES)
        if when == "at once":
            time.sleep(0.3)
        process.start()
        taken.touch()
        return [died[0], fakes.run(process, PASSES), fakes.pids]

    died, passed, pids = call_supervisor(run_two)
    assert died == "exited"
    assert passed == ["passed", str(pids[2])]
    assert len(pids) == 3  # none follows a standby that died
