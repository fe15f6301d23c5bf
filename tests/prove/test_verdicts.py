"""Every verdict, each from a guard that earns it, over a release of our own with planted bugs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from calling import is_alive, wait_until
from judged_guards import EXPECTED, GUARDS, OF_OTHER_TOGGLES
from memory import write_toggle
from proving import Prove

Cells = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def prove(make_prove: Callable[[], Prove]) -> Prove:
    return make_prove()


@pytest.fixture(scope="module")
def finished_prove(prove: Prove) -> tuple[int, dict[str, Any]]:
    prove.write(GUARDS)
    prove.write(OF_OTHER_TOGGLES, "test_other.py")
    target, buggy = "sglang.forms:plain", "doubled = 2"
    write_toggle(prove.toggles, "toy-stale", target, "nothing_like = it", buggy)
    write_toggle(prove.toggles, "toy-npu", target, "doubled = topk * 2", buggy, devices=("npu",))
    # The seed orders the sides: with this one the cell `proven` runs the buggy side first.
    return run_guards(prove, "--memory", "0.5", "-k", "not hangs")


@pytest.fixture(scope="module")
def hanging_prove(
    finished_prove: tuple[int, dict[str, Any]], prove: Prove
) -> tuple[int, dict[str, Any]]:
    """Only guards that hang have a short limit: on a busy machine others could exceed it."""
    return run_guards(prove, "--limit", "6", "-k", "hangs")


def run_guards(prove: Prove, *words: str) -> tuple[int, dict[str, Any]]:
    ended = prove.run("--json", "-j", "3", "--seed", "1", *words)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout) | {"stderr": ended.stderr}


@pytest.fixture(scope="module")
def cells(
    finished_prove: tuple[int, dict[str, Any]], hanging_prove: tuple[int, dict[str, Any]]
) -> Cells:
    return {
        cell["guard"].partition("::test_")[2]: cell
        for _, run in (finished_prove, hanging_prove)
        for cell in run["cells"]
        if not cell["guard"].endswith("of_two")
    }


def test_each_guard_gets_the_verdict_it_earned(cells: Cells) -> None:
    assert {name: cell["verdict"] for name, cell in cells.items()} == EXPECTED


def test_the_run_is_red_and_lists_each_problem(
    finished_prove: tuple[int, dict[str, Any]], hanging_prove: tuple[int, dict[str, Any]]
) -> None:
    for code, run in (finished_prove, hanging_prove):
        assert code == 1
        assert not run["green"]
        assert run["status"] == "finished"
    good = ("proven", "n/a")
    problems = finished_prove[1]["problems"] + hanging_prove[1]["problems"]
    assert len(problems) == sum(verdict not in good for verdict in EXPECTED.values())


def test_a_guard_of_two_toggles_is_two_cells(finished_prove: tuple[int, dict[str, Any]]) -> None:
    found = [cell for cell in finished_prove[1]["cells"] if cell["guard"].endswith("of_two")]
    assert {(cell["toggle"], cell["verdict"]) for cell in found} == {
        ("toy-plain", "proven"),
        ("toy-default", "proven"),
    }


def test_a_proof_shows_its_counterexample_its_reach_and_how_to_run_it_again(cells: Cells) -> None:
    fixed, buggy = cells["proven"]["sides"]["fixed"], cells["proven"]["sides"]["buggy"]
    assert fixed["outcome"] == "passed"
    assert fixed["reach"] == 1 + 40, "the other side's example ahead, and its own"
    assert buggy["reach"] > 0
    assert any("rows=1" in line for line in buggy["example"])
    assert "--replay" in buggy["replay"]
    assert "forms.plain(rows, topk) == rows * topk * 2" in buggy["detail"]


@pytest.mark.parametrize(
    ("guard", "side", "words"),
    [
        ("segfault_when_buggy", "buggy", "segmentation fault (SIGSEGV)"),
        ("abort_when_buggy", "buggy", "aborted (SIGABRT)"),
        ("ends_by_a_signal_without_a_name", "fixed", "signal 40"),
        ("hangs", "fixed", "it did not end within 6 s"),
        ("takes_all_memory", "fixed", "more than 0.5 GiB"),
        ("ends_its_process", "fixed", "exit code 0"),
        ("in_a_torn_fixture", "fixed", "in setup: the fixture is torn"),
        ("before_an_untidy_fixture", "fixed", "in teardown: RuntimeError"),
        ("stumbles_when_buggy", "buggy", "RuntimeError: not an assertion"),
        ("kills_its_parent", "fixed", "supervisor ended: SIGKILL"),
        ("kills_the_worker", "fixed", "run alone, it ended its worker"),
        ("does_not_hold_still", "fixed", "Flaky"),
        ("fails_in_a_thread", "buggy", 'in the thread "the row\'s": seen in a thread'),
        ("fails_in_a_thread_on_both_sides", "fixed", 'in the thread "Thread-1 (run)": RuntimeErr'),
        ("fails_in_teardown", "buggy", "in teardown: seen in teardown"),
    ],
)
def test_a_headline_says_why(cells: Cells, guard: str, side: str, words: str) -> None:
    assert words in cells[guard]["sides"][side]["headline"]


def test_the_failure_of_the_fixed_side_stands_first(cells: Cells) -> None:
    assert cells["wrong_as_fixed"]["why"].startswith("with the fix applied: assert 5 < 5")


def test_a_broken_guard_is_shown_with_its_reason_at_once_and_in_the_report(
    finished_prove: tuple[int, dict[str, Any]], prove: Prove, cells: Cells
) -> None:
    report = prove.again("report", finished_prove[1]["id"]).stdout
    for guard in ("fails_in_a_thread", "fails_in_teardown"):
        why = cells[guard]["why"]
        assert why.startswith("with the fix reverted: in t")
        assert why in finished_prove[1]["stderr"]
        assert why in report


def test_a_hang_and_a_crash_say_where(cells: Cells) -> None:
    assert "here_it_hangs" in cells["hangs"]["sides"]["fixed"]["detail"]
    assert "test_segfault_when_buggy" in cells["segfault_when_buggy"]["sides"]["buggy"]["detail"]


def test_a_test_that_died_keeps_its_reach(cells: Cells) -> None:
    for guard in ("segfault", "kills_itself", "hangs", "takes_all_memory"):
        assert cells[guard]["sides"]["fixed"]["reach"] == 1


def test_no_process_survives_the_run(cells: Cells, prove: Prove) -> None:
    assert cells["leaves_children"]["sides"]["fixed"]["left"] >= 2
    files = [prove.shared / name for name in ("pids", "orphans")]
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    assert len(pids) >= 3 + 2
    wait_until(lambda: not any(map(is_alive, pids)))


def test_a_run_as_json_has_the_toggles_of_its_cells_alone(
    finished_prove: tuple[int, dict[str, Any]],
) -> None:
    run = finished_prove[1]
    guarded = {cell["toggle"] for cell in run["cells"]}
    assert {toggle["id"] for toggle in run["toggles"]} == guarded & set(
        run["releases"][0]["states"]
    )
    assert run["releases"][0]["patches"].keys() <= guarded < run["releases"][0]["states"].keys()
