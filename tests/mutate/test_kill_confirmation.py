"""A kill counts only if the guard fails with the fault alone, and passes without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calling import PATIENCE_SECONDS, list_living_processes, wait_until
from toy_release import Mutate

# Above the test is its supervisor, above that the worker; then it waits for its end.
ENDS_ITS_WORKER = (
    "import os, signal\n"
    "    keeper = os.getppid()\n"
    "    above = open(f'/proc/{keeper}/stat').read().rpartition(')')[2].split()[1]\n"
    "    os.kill(int(above), signal.SIGKILL)\n"
    "    signal.pause()\n"
    "    return rows"
)


def write_guards(mutate: Mutate, text: str) -> None:
    mutate.guards.write_text(
        "import os, signal\n"
        "import pytest\n"
        "from pathlib import Path\n"
        "from hypothesis import given, strategies as st\n"
        "from sglang.srt import sizes\n" + text
    )


def make_notes(notes: Path, where: str) -> str:
    """Return lines of a guard that record that it ran."""
    return (
        f"    if {where}:\n"
        f"        with Path({str(notes)!r}).open('a') as notes:\n"
        "            notes.write('once ')\n"
    )


def get_only_fault(run: dict[str, Any]) -> dict[str, Any]:
    (fated,) = run["fates"]
    found: dict[str, Any] = fated
    return found


def test_a_guard_that_fails_with_more_examples_kills_nothing(mutate: Mutate) -> None:
    write_guards(
        mutate,
        "COUNT = 0\n"
        "@given(st.integers(1, 10**6))\n"
        "def test_width(rows):\n"
        "    global COUNT\n"
        "    COUNT += 1\n"
        "    assert COUNT < 300, 'too often'\n"
        "    assert sizes.width(rows, 2) >= 2 * rows\n",
    )
    mutate.fault("width", "rows * topk", "rows * topk + 1")
    run = mutate.run()
    assert get_only_fault(run)["fate"] == "survived"
    assert "test_width fails without any fault with 10 times the examples" in run["problems"][0]
    assert run["code"] == 1


def test_what_one_guard_leaves_behind_kills_nothing_for_another(mutate: Mutate) -> None:
    write_guards(
        mutate,
        "LEFT = []\n"
        "@pytest.mark.parametrize('one', ['a', 'b'])\n"
        "def test_alone(one):\n"
        "    assert sizes.width(2, 3) == 6 and not LEFT\n"
        "    LEFT.append(one)\n",
    )
    mutate.fault("width", "rows * topk", "topk * rows")
    run = mutate.run("--examples", "1")
    assert get_only_fault(run)["fate"] == "survived"
    (first,) = get_only_fault(run)["passed"]
    second = {"a": "test_alone[b]", "b": "test_alone[a]"}[first[-2]]
    assert f"{second} fails without any fault after {first}" in run["problems"][0]


@pytest.mark.parametrize(
    ("dies", "fate"), [("once", "survived"), ("always", "lost")], ids=["once", "always"]
)
def test_what_ends_a_process_has_to_do_so_again(mutate: Mutate, dies: str, fate: str) -> None:
    """The first end may have been the machine's fault."""
    notes = mutate.root / "died"
    mark = f"Path({str(notes)!r})"
    write_guards(
        mutate,
        "def test_dies():\n"
        f"    if sizes.width(2, 3) == 7 and ({dies == 'always'} or not {mark}.exists()):\n"
        f"        {mark}.touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    mutate.fault("width", "rows * topk", "rows * topk + 1")
    run = mutate.run("--examples", "1")
    assert notes.exists()
    assert get_only_fault(run)["fate"] == fate
    assert run["problems"] == []


@pytest.mark.parametrize(
    ("others", "fate"),
    [("    assert rows == 6", "killed"), ("    while rows == 7: time.sleep(0.1)", "hang")],
    ids=["another fails", "another hangs"],
)
def test_after_a_guard_that_hangs_the_quickest_of_the_others_runs(
    others: str, fate: str, mutate: Mutate
) -> None:
    """A second one that hangs is the last: each hangs for its whole limit."""
    notes = mutate.root / "ran"
    write_guards(
        mutate,
        "import time\n"
        "def test_a():\n"
        "    while sizes.width(2, 3) == 7: time.sleep(0.1)\n"
        "def test_b():\n"
        "    time.sleep(0.5)\n"
        "    rows = sizes.width(2, 3)\n"
        f"{others}\n"
        "def test_c():\n"
        "    time.sleep(2)\n" + make_notes(notes, "sizes.width(2, 3) == 7"),
    )
    mutate.patience = (2.0, (2.0, 1.0))
    mutate.fault("width", "rows * topk", "rows * topk + 1")
    run = mutate.run("--examples", "1")
    assert get_only_fault(run)["fate"] == fate
    assert not notes.exists()


def test_what_took_too_long_may_take_longer_and_then_was_only_slow(mutate: Mutate) -> None:
    notes = mutate.root / "slept"
    write_guards(
        mutate,
        "import time\n"
        "def test_sleeps():\n"
        + make_notes(notes, "sizes.width(2, 3) == 7")
        + "        time.sleep(4.0)\n",
    )
    mutate.patience = (3.0, (PATIENCE_SECONDS, 2.0))
    mutate.fault("width", "rows * topk", "rows * topk + 1")
    run = mutate.run("--examples", "1")
    assert notes.read_text().split() == ["once"] * 2  # 3 s were too short, 300 s enough
    assert get_only_fault(run)["fate"] == "survived"
    assert run["problems"] == []


def test_a_guard_passes_without_a_fault_as_often_as_in_a_proof(mutate: Mutate) -> None:
    """Once for all its kills, and its pass is counted in whose run its lines are recorded."""
    notes = mutate.root / "passed"
    write_guards(
        mutate,
        "def test_width():\n"
        + make_notes(notes, "sizes.width(2, 3) == 6")
        + "    assert sizes.width(2, 3) == 6\n",
    )
    for after in ("rows * topk + 1", "rows + topk"):
        mutate.fault("width", "rows * topk", after)
    for _ in range(2):
        run = mutate.run("--examples", "1")
        assert [fated["fate"] for fated in run["fates"]] == ["killed"] * 2
        assert notes.read_text().split() == ["once"] * 3
        notes.unlink()


@pytest.mark.parametrize("known", ["", "so it was thought"])
def test_a_guard_that_skips_or_refuses_has_noticed_nothing(mutate: Mutate, known: str) -> None:
    """Neither kills a fault, nor disproves that it is equivalent."""
    refusal = "raise UnfixError('it cannot be followed')" if known else "pytest.skip('not today')"
    write_guards(
        mutate,
        "from harness.core.errors import UnfixError\n"
        f"def test_a():\n    if sizes.width(2, 3) != 6:\n        {refusal}\n",
    )
    fault = mutate.fault("width", "rows * topk", "rows * topk + 1")
    mutate.equals = {fault.id: known} if known else {}
    fated = get_only_fault(mutate.run("--equal", "--examples", "1"))
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


def test_a_guard_that_fails_once_has_to_fail_again(mutate: Mutate) -> None:
    """Three of four failures are not enough: a guard that fails at random gets that far."""
    notes = mutate.root / "failed"
    write_guards(
        mutate,
        "def test_fails():\n"
        f"    notes = Path({str(notes)!r})\n"
        "    if sizes.width(2, 3) == 7:\n"
        "        count = len(notes.read_text()) if notes.exists() else 0\n"
        "        notes.write_text('x' * (count + 1))\n"
        "        assert count == 3, 'by chance'\n",
    )
    mutate.fault("width", "rows * topk", "rows * topk + 1")
    run = mutate.run("--examples", "1")
    assert len(notes.read_text()) == 4
    assert (get_only_fault(run)["fate"], run["score"]) == ("survived", 0)


def test_each_repetition_has_random_numbers_of_its_own(mutate: Mutate) -> None:
    """All forks of a worker begin with one state of `random`: chance would repeat itself."""
    notes = mutate.root / "drawn"
    write_guards(
        mutate,
        "import random\n"
        "def test_draws():\n"
        "    if sizes.width(2, 3) == 7:\n"
        f"        with open({str(notes)!r}, 'a') as file:\n"
        "            file.write(f'{random.random()}\\n')\n"
        "        assert False\n",
    )
    mutate.fault("width", "rows * topk", "rows * topk + 1")
    assert get_only_fault(mutate.run("--examples", "1"))["fate"] == "killed"
    assert len(set(notes.read_text().split())) == 4


NO_EVIDENCE = {
    "the harness refuses": ("from harness.core.errors import UnfixError\n",
                            "raise UnfixError('the checker cannot follow it')", "refused"),
    "a stand-in refuses": ("", "raise RuntimeError('stand-in for sgl_kernel: x')", "refused"),
    "the fixture has less than the code asks for": ("import types\n",
                                                    "types.SimpleNamespace().rank", "refused"),
    "no memory": ("", "raise MemoryError", "out of memory"),
    "no memory for a tensor": (
        "",
        'raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory: 9 bytes")',
        "out of memory",
    ),
    "no room on the disk": ("import errno\n", "raise OSError(errno.ENOSPC, 'full')", "lost"),
}  # fmt: skip


@pytest.mark.parametrize("what", NO_EVIDENCE)
def test_what_says_nothing_of_the_result_kills_nothing(mutate: Mutate, what: str) -> None:
    imports, statement, fate = NO_EVIDENCE[what]
    write_guards(
        mutate,
        f"{imports}def test_width():\n    if sizes.width(2, 3) != 6:\n        {statement}\n",
    )
    mutate.fault("width", "rows * topk", "rows * topk + 1")
    run = mutate.run("--examples", "1")
    assert (get_only_fault(run)["fate"], get_only_fault(run)["how"], get_only_fault(run)["by"]) == (
        fate,
        None,
        "",
    )
    assert "test_width" in get_only_fault(run)["why"]
    assert (run["score"], run["counts"]) == (0, {fate: 1})


def test_a_refusal_leaves_the_fault_to_the_other_guards(mutate: Mutate) -> None:
    write_guards(
        mutate,
        "from harness.core.errors import UnfixError\n"
        "def test_a():\n"
        "    if sizes.width(2, 3) != 6:\n"
        "        raise UnfixError('the checker cannot follow it')\n"
        "def test_b():\n"
        "    assert sizes.width(2, 3) == 6\n",
    )
    mutate.fault("width", "rows * topk", "rows * topk + 1")
    fated = get_only_fault(mutate.run("--examples", "1"))
    assert (fated["fate"], fated["by"]) == ("killed", "test_sizes.py::test_b")


def test_a_missing_attribute_of_a_value_is_a_failure(mutate: Mutate) -> None:
    """The value is the code's own, as None is, and no fixture's."""
    write_guards(mutate, "def test_width():\n    sizes.width(2, 3).bit_count()\n")
    mutate.fault("width", "return rows * topk", "return None")
    run = mutate.run("--examples", "1")
    assert (get_only_fault(run)["fate"], get_only_fault(run)["how"]) == ("killed", "exception")
