"""A kill counts only if the guard fails with the fault alone, and passes without it."""

from __future__ import annotations

from typing import Any

import pytest
from calling import PATIENCE_SECONDS, list_living_processes, wait_until
from toy_release import Mutate

# Above the test is its supervisor, above that the worker; then it waits for its end.
ENDS_ITS_WORKER = """import os, signal
    keeper = os.getppid()
    above = open(f'/proc/{keeper}/stat').read().rpartition(')')[2].split()[1]
    os.kill(int(above), signal.SIGKILL)
    signal.pause()
    return rows"""
HEAD = """import os, random, signal, time, types
import errno
import pytest
from pathlib import Path
from hypothesis import given, strategies as st
from harness.core.errors import UnfixError
from sglang.srt import sizes
NOTES = Path({notes!r})
def note(text="once "):
    with NOTES.open("a") as notes:
        notes.write(text)
"""


class OneFault:
    """A fault of `width`, by which `sizes.width(2, 3)` is 7, and guards that are tried on it."""

    def __init__(self, mutate: Mutate) -> None:
        self.mutate = mutate
        self.notes = mutate.root / "notes"
        self.run: dict[str, Any] = {}

    def write_guards(self, text: str) -> None:
        self.mutate.guards.write_text(HEAD.format(notes=str(self.notes)) + text)

    def try_guards(self, text: str, *words: str, after: str = "rows * topk + 1") -> dict[str, Any]:
        """Return what became of the fault."""
        self.write_guards(text)
        self.mutate.fault("width", "rows * topk", after)
        self.run = self.mutate.run(*(words or ("--examples", "1")))
        (fated,) = self.run["fates"]
        found: dict[str, Any] = fated
        return found

    def read_notes(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []


@pytest.fixture
def fault(mutate: Mutate) -> OneFault:
    return OneFault(mutate)


OFTEN = """
COUNT = 0
@given(st.integers(1, 10**6))
def test_width(rows):
    global COUNT
    COUNT += 1
    assert COUNT < 300, 'too often'
    assert sizes.width(rows, 2) >= 2 * rows
"""


def test_a_guard_that_fails_with_more_examples_kills_nothing(fault: OneFault) -> None:
    assert fault.try_guards(OFTEN, "--seed", "0")["fate"] == "survived"
    words = "test_width fails without any fault with 10 times the examples"
    assert words in fault.run["problems"][0]
    assert fault.run["code"] == 1


LEAVES = """
LEFT = []
@pytest.mark.parametrize('one', ['a', 'b'])
def test_alone(one):
    assert sizes.width(2, 3) == 6 and not LEFT
    LEFT.append(one)
"""


def test_what_one_guard_leaves_behind_kills_nothing_for_another(fault: OneFault) -> None:
    fated = fault.try_guards(LEAVES, after="topk * rows")
    assert fated["fate"] == "survived"
    (first,) = fated["passed"]
    second = {"a": "test_alone[b]", "b": "test_alone[a]"}[first[-2]]
    assert f"{second} fails without any fault after {first}" in fault.run["problems"][0]


DIES = """
def test_dies():
    if sizes.width(2, 3) == 7 and ({} or not NOTES.exists()):
        note()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("always", "fate"), [(False, "survived"), (True, "lost")])
def test_what_ends_a_process_has_to_do_so_again(fault: OneFault, always: bool, fate: str) -> None:
    """The first end may have been the machine's fault."""
    assert fault.try_guards(DIES.format(always))["fate"] == fate
    assert fault.read_notes()
    assert fault.run["problems"] == []


THREE = """
def test_a():
    while sizes.width(2, 3) == 7: time.sleep(0.1)
def test_b():
    time.sleep(0.2)
    rows = sizes.width(2, 3)
    {}
def test_c():
    time.sleep(1.2)
    if sizes.width(2, 3) == 7: note()
"""


@pytest.mark.parametrize(
    ("others", "fate"),
    [("assert rows == 6", "killed"), ("while rows == 7: time.sleep(0.1)", "hang")],
    ids=["another fails", "another hangs"],
)
def test_after_a_guard_that_hangs_the_quickest_of_the_others_runs(
    others: str, fate: str, fault: OneFault
) -> None:
    """A second one that hangs is the last: each hangs for its whole limit."""
    fault.mutate.patience = (2.0, (2.0, 1.0))
    assert fault.try_guards(THREE.format(others))["fate"] == fate
    assert fault.read_notes() == []


def test_what_took_too_long_may_take_longer_and_then_was_only_slow(fault: OneFault) -> None:
    fault.mutate.patience = (3.0, (PATIENCE_SECONDS, 2.0))
    sleeps = "def test_sleeps():\n    if sizes.width(2, 3) == 7: note(); time.sleep(4.0)\n"
    assert fault.try_guards(sleeps)["fate"] == "survived"
    assert fault.read_notes() == ["once"] * 2  # 3 s were too short, 300 s enough
    assert fault.run["problems"] == []


PASSES = """
def test_width():
    if sizes.width(2, 3) == 6: note()
    assert sizes.width(2, 3) == 6
"""


def test_a_guard_passes_without_a_fault_as_often_as_in_a_proof(fault: OneFault) -> None:
    """Once for all its kills, and its pass is counted in whose run its lines are recorded."""
    fault.write_guards(PASSES)
    for after in ("rows * topk + 1", "rows + topk"):
        fault.mutate.fault("width", "rows * topk", after)
    for _ in range(2):
        run = fault.mutate.run("--examples", "1")
        assert [fated["fate"] for fated in run["fates"]] == ["killed"] * 2
        assert fault.read_notes() == ["once"] * 3
        fault.notes.unlink()


@pytest.mark.parametrize("known", ["", "so it was thought"])
def test_a_guard_that_skips_or_refuses_has_noticed_nothing(fault: OneFault, known: str) -> None:
    """Neither kills a fault, nor disproves that it is equivalent."""
    refusal = "raise UnfixError('it cannot be followed')" if known else "pytest.skip('not today')"
    twin = fault.mutate.fault("width", "rows * topk", "rows * topk + 1")
    fault.mutate.faults.clear()
    fault.mutate.equals = {twin.id: known} if known else {}
    guards = f"def test_a():\n    if sizes.width(2, 3) != 6: {refusal}\n"
    fated = fault.try_guards(guards, "--equal", "--examples", "1")
    assert (fated["fate"], fated["passed"]) == ("equal" if known else "survived", [])
    assert (fated["longer"], known in fated["why"]) == (False, True)


def test_a_fault_that_ends_every_worker_is_lost_and_the_run_goes_on(mutate: Mutate) -> None:
    ends = mutate.fault("width", "return rows", ENDS_ITS_WORKER)
    after = mutate.fault("total", "range(count)", "range(count - 1)")
    run = mutate.run("--examples", "1", "-j", "2")
    notes = {fated["fault"]["id"]: (fated["fate"], fated["how"]) for fated in run["fates"]}
    assert notes == {ends.id: ("lost", None), after.id: ("killed", "assertion")}
    assert any("another took its place" in problem for problem in run["problems"])
    wait_until(lambda: not list_living_processes(mutate.root))


FAILS_ONCE = """
def test_fails():
    if sizes.width(2, 3) == 7:
        count = len(NOTES.read_text()) if NOTES.exists() else 0
        note("x")
        assert count == 3, 'by chance'
"""


def test_a_guard_that_fails_once_has_to_fail_again(fault: OneFault) -> None:
    """Three of four failures are not enough: a guard that fails at random gets that far."""
    assert fault.try_guards(FAILS_ONCE)["fate"] == "survived"
    assert (fault.read_notes(), fault.run["score"]) == (["xxxx"], 0)


def test_each_repetition_has_random_numbers_of_its_own(fault: OneFault) -> None:
    """All forks of a worker begin with one state of `random`: chance would repeat itself."""
    draws = (
        "def test_draws():\n    if sizes.width(2, 3) == 7: note(f'{random.random()} '); assert 0\n"
    )
    assert fault.try_guards(draws)["fate"] == "killed"
    assert len(set(fault.read_notes())) == 4


NO_EVIDENCE = {
    "the harness refuses": ("raise UnfixError('the checker cannot follow it')", "refused"),
    "a stand-in refuses": ("raise RuntimeError('stand-in for sgl_kernel: x')", "refused"),
    "the fixture has less than the code asks for": ("types.SimpleNamespace().rank", "refused"),
    "no memory": ("raise MemoryError", "out-of-memory"),
    "no memory for a tensor": (
        'raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory: 9 bytes")',
        "out-of-memory",
    ),
    "no room on the disk": ("raise OSError(errno.ENOSPC, 'full')", "lost"),
}


@pytest.mark.parametrize("what", NO_EVIDENCE)
def test_what_says_nothing_of_the_result_kills_nothing(fault: OneFault, what: str) -> None:
    statement, fate = NO_EVIDENCE[what]
    fated = fault.try_guards(f"def test_width():\n    if sizes.width(2, 3) != 6: {statement}\n")
    assert (fated["fate"], fated["how"], fated["by"]) == (fate, None, "")
    assert "test_width" in fated["why"]
    assert (fault.run["score"], fault.run["counts"]) == (0, {fate: 1})


def test_a_refusal_leaves_the_fault_to_the_other_guards(fault: OneFault) -> None:
    refuses = "def test_a():\n    if sizes.width(2, 3) != 6: raise UnfixError('no')\n"
    fated = fault.try_guards(f"{refuses}def test_b():\n    assert sizes.width(2, 3) == 6\n")
    assert (fated["fate"], fated["by"]) == ("killed", "test_sizes.py::test_b")


def test_a_missing_attribute_of_a_value_is_a_failure(fault: OneFault) -> None:
    """The value is the code's own, as None is, and no fixture's."""
    text = "def test_width():\n    sizes.width(2, 3).bit_count()\n"
    fated = fault.try_guards(text, after="rows if rows > 9 else None")
    assert (fated["fate"], fated["how"]) == ("killed", "exception")
