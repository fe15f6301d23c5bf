"""Attempts that share a process, as on a GPU: each is as one in a fork of its own."""

from __future__ import annotations

from typing import Any

from toy_release import HANGS, Mutate, by_id

# Each guard notes its process and the function that it calls.
GUARDS = """
import os
from pathlib import Path
from sglang.srt import sizes

def note(name):
    with open(Path(__file__).parent / "processes", "a") as file:
        file.write(f"{name} {os.getpid()}\\n")

def test_width():
    note("width")
    assert sizes.width(2, 3) == 6

def test_total():
    note("total")
    assert sizes.total(4) == 6

def test_room():
    note("room")
    assert sizes.unread(1) == 8
"""


def run_shared(mutate: Mutate, guards: str = GUARDS) -> dict[str, Any]:
    mutate.guards.write_text(guards)
    run = mutate.run(SHARES="1")
    assert run["status"] == "finished", run["stderr"]
    return by_id(run)


def read_processes(mutate: Mutate) -> list[tuple[str, str]]:
    lines = (mutate.guards.parent / "processes").read_text().splitlines()
    return [(name, pid) for name, _, pid in (line.partition(" ") for line in lines)]


def test_many_attempts_run_in_one_process(mutate: Mutate) -> None:
    killed = [mutate.fault("width", "rows * topk", f"rows * topk + {more}") for more in (1, 2, 3)]
    passes = mutate.fault("width", "rows * topk", "topk * rows")
    fates = run_shared(mutate)
    assert {fates[fault.id]["fate"] for fault in killed} == {"killed"}
    assert fates[passes.id]["fate"] == "survived"
    # One records the lines, before the modules of the faults are imported for all.
    assert len({pid for _, pid in read_processes(mutate)}) <= 2
    assert len(read_processes(mutate)) > 20


def test_each_death_costs_one_process_and_no_other_attempt(mutate: Mutate) -> None:
    dies = mutate.fault(
        "width", "return rows", "import os; os.kill(os.getpid(), 11)\n    return rows"
    )
    leaves = mutate.fault("width", "return rows", "import os; os._exit(3)\n    return rows")
    hangs = mutate.fault("total", "found = 0", HANGS + "found = 0")
    after = mutate.fault("width", "rows * topk", "rows")
    passes = mutate.fault("width", "rows * topk", "topk * rows")
    mutate.patience = (1.0, (3.0, 2.0))
    fates = run_shared(mutate)
    results = {name: (fate["fate"], fate["how"]) for name, fate in fates.items()}
    assert results == {
        dies.id: ("killed", "crash"),
        leaves.id: ("killed", "exit"),
        hangs.id: ("hang", None),
        after.id: ("killed", "assertion"),
        passes.id: ("survived", None),
    }


def test_what_cannot_be_put_back_kills_no_later_fault(mutate: Mutate) -> None:
    """The fault changes an attribute of a function, which no state lists; its guard passes.

    The next fault is equal to the code, and its guard fails by what the first one left: it fails
    without that fault as well, and passes in a new process.
    """
    leaks = mutate.fault("width", "return rows", "chosen.is_broken = True\n    return rows")
    passes = mutate.fault("unread", "rows + ROOM", "ROOM + rows")
    killed = mutate.fault("unread", "rows + ROOM", "rows - ROOM")
    guards = GUARDS.replace(
        'note("room")', 'note("room"); assert not hasattr(sizes.chosen, "is_broken")'
    )
    fates = run_shared(mutate, guards)
    assert fates[leaks.id]["fate"] == "survived"
    assert fates[passes.id]["fate"] == "survived"
    assert fates[killed.id]["fate"] == "killed"


def test_a_process_without_memory_is_replaced(mutate: Mutate) -> None:
    """A guard that lacks memory runs again alone, and not in the process that lacked it."""
    raises = "raise MemoryError('the device is full')\n    return rows"
    full = mutate.fault("width", "return rows", raises)
    after = mutate.fault("width", "rows * topk", "topk * rows")
    fates = run_shared(mutate)
    assert fates[full.id]["fate"] == "out-of-memory"
    assert fates[after.id]["fate"] == "survived"
    by_attempt = [pid for name, pid in read_processes(mutate) if name == "width"]
    assert len(set(by_attempt)) >= 3  # each of two full ones, and one without the fault


STICKY = """
import sys
from harness.workers import device_tests

def read_pending_error():
    lost = sys.modules.get("sglang.srt.sizes.lost") == os.getpid()
    return "an illegal memory access" if lost else ""

device_tests.read_pending_error = read_pending_error
note_process = note

def note(name):
    note_process(f"{name}-when-lost" if read_pending_error() else name)
"""


def test_no_test_runs_in_a_process_that_lost_its_device(mutate: Mutate) -> None:
    """The fault loses the device behind its guard's assertion, and every later test would fail."""
    lose = "import os, sys; sys.modules[__name__ + '.lost'] = os.getpid()\n    return rows"
    loses = mutate.fault("width", "return rows", lose)
    after = mutate.fault("unread", "rows + ROOM", "ROOM + rows")
    fates = run_shared(mutate, GUARDS + STICKY)
    assert (fates[loses.id]["fate"], fates[loses.id]["how"]) == ("killed", "CUDA error")
    assert fates[after.id]["fate"] == "survived"
    assert {name for name, _ in read_processes(mutate)} == {"width", "total", "room"}


# Forks cannot use the device, as where a release's import starts CUDA.
WITHOUT_FORKS = """
from harness.core import device

device.can_forks_use_device = lambda: False
"""


def test_processes_import_the_release_where_forks_cannot_use_the_device(mutate: Mutate) -> None:
    """Each outcome is as in forks, and only a death costs a process."""
    killed = [mutate.fault("width", "rows * topk", f"rows * topk + {more}") for more in (1, 2, 3)]
    passes = mutate.fault("width", "rows * topk", "topk * rows")
    dies = mutate.fault(
        "width", "return rows", "import os; os.kill(os.getpid(), 11)\n    return rows"
    )
    fates = run_shared(mutate, GUARDS + WITHOUT_FORKS + 'note("collected")\n')
    assert {fates[fault.id]["fate"] for fault in killed} == {"killed"}
    assert fates[passes.id]["fate"] == "survived"
    assert (fates[dies.id]["fate"], fates[dies.id]["how"]) == ("killed", "crash")
    collected = {pid for name, pid in read_processes(mutate) if name == "collected"}
    ran = [pid for name, pid in read_processes(mutate) if name != "collected"]
    assert {*ran} < collected  # each of them has imported the release; the worker ran none
    assert ran.count(ran[0]) > 20


def test_a_process_that_does_not_start_is_named(mutate: Mutate) -> None:
    mutate.fault("width", "rows * topk", "topk * rows")
    dies = (
        "import sys\nif '\"is_shared_process\":true' in os.environ['UNFIX_WORKER']: os._exit(9)\n"
    )
    mutate.guards.write_text(GUARDS + WITHOUT_FORKS + dies)
    done = mutate.call(SHARES="1")
    assert done.returncode
    assert "a process for many tests did not start: exit code 9" in done.stderr
