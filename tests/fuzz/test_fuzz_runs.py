"""One run over tests of every kind: it finds, distinguishes and shrinks their failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nights import Nights, by_test, read_failures

from harness.runs.fuzz.time_slice_run import FULLY_TRACED_EXAMPLES, TRACED_FRACTION

SUITE = """
@guards("toy-plain")
@given(topk=st.integers(1, 8))
def test_guard(topk):
    assert forms.plain(1, topk) == 2 * topk

@given(number=st.integers(0, 1000), more=st.lists(st.integers(0, 9)))
def test_fails_in_two_ways(number, more):
    if number > 700:
        raise ValueError(f"{number} is too large")
    assert number < 500, f"{number} is rather large"

@given(number=st.integers(0, 10**7))
def test_climbs(number):
    maximize_target("nearness", -abs(number - 1_234_567))
    assert number != 1_234_567

@given(number=st.integers(0, 100))
def test_dies(number):
    if number > 90:
        os.kill(os.getpid(), signal.SIGSEGV)

@given(first=st.integers(0, 100), data=st.data())
def test_dies_of_what_it_drew(first, data):
    if data.draw(st.integers(0, 100)) > 90:
        os.kill(os.getpid(), signal.SIGSEGV)

@given(number=st.integers(0, 100))
def test_hangs(number):
    while number > 90:
        time.sleep(0.1)

@given(flag=st.booleans())
def test_has_two_examples(flag):
    pass

@given(number=st.integers(0, 10**9))
def test_passes(number):
    assert forms.plain(number, 1) == 2 * number

@given(number=st.integers())
def test_not_here(number):
    skip_not_applicable("the toy has no such thing")

@pytest.mark.xfail(reason="a bug of the toy")
@given(number=st.integers())
def test_expected_to_fail(number):
    assert False

@pytest.mark.xfail(False, reason="a bug of another toy")
@given(number=st.integers(0, 3))
def test_not_expected_to_fail(number):
    pass

def test_without_examples():
    pass

@given(number=st.integers())
def test_assumes_what_cannot_be(number):
    assume(False)
"""


@pytest.fixture(scope="module")
def place(make_nights: Callable[[], Nights]) -> Nights:
    nights = make_nights()
    nights.write(SUITE)
    return nights


@pytest.fixture(scope="module")
def night(place: Nights) -> dict[str, Any]:
    words = ("--revert", "toy-plain", "--limit", "1", "--seed", "3")
    return place.night(*words, seconds=12, is_enough=has_run_each_test_often)


def has_run_each_test_often(night: dict[str, Any]) -> bool:
    tests = by_test(night)
    searched = [test for test in tests.values() if not (test["left_out"] or test["exhausted"])]
    # The needle is found in the second slice, behind some 50 examples.
    return bool(min(test["slices"] for test in searched) > 2 and tests["climbs"]["examples"] > 200)


def test_a_failure_is_shrunk_and_written_with_all_that_runs_it_again(
    night: dict[str, Any],
) -> None:
    (kept,) = [each for each in night["failures"] if "test_guard" in each["repro"]["test"]]
    written = json.loads(Path(kept["file"]).read_text())
    assert written == kept["repro"]
    assert written["arguments"] == ["topk=2"]
    assert written["release"] == "1.0.0"
    assert written["under"] == [["toy-plain", "revert"]]
    assert written["error"] == "AssertionError"
    assert written["shrunk"]
    assert written["blob"]
    assert {"python", "hypothesis"} <= set(written["versions"])
    assert "forms.plain(1, topk) == 2 * topk" in written["where"]
    assert "test_guard" in written["detail"]
    assert f"--replay .unfix/fuzz/failures/{kept['name']}.json" in kept["replay"]


def test_failures_are_told_apart_and_not_by_the_numbers_in_their_messages(
    night: dict[str, Any],
) -> None:
    found = read_failures(night)["fails_in_two_ways"]
    arguments = {each["error"]: each["arguments"] for each in found}
    assert len(found) == 2
    assert arguments == {
        "ValueError": ["number=701", "more=[]"],
        "AssertionError": ["number=500", "more=[]"],
    }


def test_the_search_goes_on_behind_a_failure(night: dict[str, Any]) -> None:
    again = [each["again"] for each in night["failures"] if "two_ways" in each["repro"]["test"]]
    assert min(again) > 0
    assert by_test(night)["fails_in_two_ways"]["slices"] > 2


def test_targets_lead_to_a_needle(night: dict[str, Any]) -> None:
    (found,) = read_failures(night)["climbs"]
    assert found["arguments"] == ["number=1234567"]
    assert by_test(night)["climbs"]["targets"]["nearness"] == 0


@pytest.mark.parametrize("name", ["dies", "dies_of_what_it_drew"])
def test_a_death_costs_one_example_and_is_a_failure_by_its_name(
    night: dict[str, Any], name: str
) -> None:
    (found,) = read_failures(night)[name]
    assert found["error"] == "segfault"
    assert found["headline"] == "segmentation fault (SIGSEGV)"
    assert found["blob"]
    assert by_test(night)[name]["slices"] > 1


def test_a_hang_is_ended_and_is_a_failure_by_its_name(night: dict[str, Any]) -> None:
    (found,) = read_failures(night)["hangs"]
    assert found["error"] == "hang"
    assert found["headline"] == "an example took longer than 1 s"
    assert int(found["arguments"][0].partition("=")[2]) > 90
    assert "time.sleep" in found["detail"] or "test_hangs" in found["detail"]


def test_a_passing_test_is_no_failure(night: dict[str, Any]) -> None:
    quiet = {"passes", "has_two_examples", "not_expected_to_fail"}
    assert not quiet & set(read_failures(night))
    assert all(by_test(night)[name]["examples"] > 0 for name in quiet)


def test_a_test_whose_every_example_was_run_gets_no_more_time(night: dict[str, Any]) -> None:
    run = by_test(night)["has_two_examples"]
    assert (run["exhausted"], run["slices"]) == (True, 1)
    assert not by_test(night)["passes"]["exhausted"]


def test_tests_that_cannot_be_fuzzed_are_listed(night: dict[str, Any]) -> None:
    left_out = {name: test["left_out"] for name, test in by_test(night).items() if test["left_out"]}
    assert left_out.pop("assumes_what_cannot_be").startswith("Unsatisfiable")
    assert left_out == {
        "not_here": "the toy has no such thing",
        "expected_to_fail": "it is expected to fail here: a bug of the toy",
        "without_examples": "it draws no examples",
    }
    (problem,) = night["problems"]
    assert "test_assumes_what_cannot_be: Unsatisfiable" in problem


def test_coverage_of_the_toggled_code_and_of_its_file_is_told(night: dict[str, Any]) -> None:
    (row,) = night["coverage"]
    assert row["file"] == "sglang/forms.py"
    # `doubled = …` and `return …`; the docstring and the `def` run no line.
    assert (row["toggled"], row["toggled_of"]) == (2, 2)
    assert row["toggled"] <= row["lines"] < row["lines_of"]


def test_a_slice_goes_on_where_the_ones_before_it_ended(nights: Nights) -> None:
    """Every slice traces a test's first examples, and only a few later ones."""
    notes = nights.root / "traced"
    nights.write(f"""
@guards("toy-plain")
@given(number=st.integers(0, 10**9))
def test_slow(number):
    with open({str(notes)!r}, "a") as file:
        file.write("x" if sys.gettrace() else ".")
    time.sleep(0.02)
""")

    def is_enough(night: dict[str, Any]) -> bool:
        run = by_test(night)["slow"]
        if run["slices"] > 1 and run["examples"] > 2 * FULLY_TRACED_EXAMPLES:
            return True
        notes.unlink()
        return False

    run = by_test(nights.night("-j", "1", code=0, is_enough=is_enough))["slow"]
    traced = notes.read_text()
    assert run["slices"] > 1
    assert run["examples"] == len(traced) > 2 * FULLY_TRACED_EXAMPLES
    assert traced[:FULLY_TRACED_EXAMPLES] == "x" * FULLY_TRACED_EXAMPLES
    assert (
        traced[FULLY_TRACED_EXAMPLES:].count("x")
        <= len(traced[FULLY_TRACED_EXAMPLES:]) // TRACED_FRACTION + 1
    )


def test_the_budget_is_kept(place: Nights, night: dict[str, Any]) -> None:
    # The import, and what was begun before the end, take time as well.
    assert place.budget < night["seconds"] < place.budget + 60


def test_a_failure_is_found_again_at_once_in_the_next_night(
    place: Nights, night: dict[str, Any]
) -> None:
    node = f"{place.suite}/test_toy.py::test_climbs"
    words = [*place.words(), "--json", "--for", "2s", "-j", "1", "--revert", "toy-plain"]
    words[words.index(str(place.suite))] = node
    done = place.call(words)
    assert done.returncode == 1, done.stderr
    (found,) = read_failures(json.loads(done.stdout))["climbs"]
    assert found["arguments"] == ["number=1234567"]
    assert found["examples"] <= 3


@pytest.mark.parametrize("name", ["guard", "dies", "dies_of_what_it_drew"])
def test_a_replay_fails_in_the_same_way(place: Nights, night: dict[str, Any], name: str) -> None:
    (kept,) = [e for e in night["failures"] if e["repro"]["test"].endswith(f"::test_{name}")]
    done = place.run("--replay", kept["file"], "--release", "current", "--json")
    assert done.returncode == 1, done.stderr
    (replayed,) = json.loads(done.stdout)
    assert replayed["fails"]
    assert replayed["headline"] == kept["repro"]["headline"]
