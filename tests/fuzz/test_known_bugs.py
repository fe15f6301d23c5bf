"""A bug that a toggle fixes and that the release still has is known: shown, and no red night."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nights import Nights

TOGGLE = """
id: toy-still-buggy
title: the product lacks its factor of three
family: forms
symptom: accuracy
devices: [cpu]
variants:
  - releases: ">=0"
    target: sglang.forms:plain
    edits:
      - fixed: doubled = topk * 6
        buggy: doubled = topk * 2
"""
KNOWN = """
@guards("toy-still-buggy")
@given(number=st.integers(1, 1000))
def test_known(number):
    assert forms.plain(number, 1) == 3 * 2 * number, "a factor is missing"
"""
ANOTHER_WAY = """
@guards("toy-still-buggy")
@given(number=st.integers(1, 1000))
def test_known_and_broken(number):
    assert forms.plain(number, 1) == 3 * 2 * number or number > 500
    assert number < 900
"""
SAME_LINE = """
@guards("toy-still-buggy")
@given(number=st.integers(1, 1000))
def test_two_causes_in_one_line(number):
    assert forms.plain(number, 1) == 3 * 2 * number and number < 900
"""
DIES = """
@guards("toy-still-buggy")
@given(number=st.integers(1, 1000))
def test_known_death(number):
    if forms.plain(number, 1) != 3 * 2 * number:
        os.kill(os.getpid(), signal.SIGSEGV)
"""
UNSTEADY = """
COUNT = os.path.join(os.path.dirname(__file__), "count")

@guards("toy-still-buggy")
@given(number=st.integers(1, 1000))
def test_fails_by_chance(number):
    forms.plain(number, 1)
    with open(COUNT, "a") as file:
        file.write("x")
    assert os.path.getsize(COUNT) != 3
"""


@pytest.fixture
def night(nights: Nights) -> Callable[..., dict[str, Any]]:
    (nights.root / "more").mkdir()
    (nights.root / "more" / "toy-still-buggy.yaml").write_text(TOGGLE)

    def run_night(suite: str, code: int, *words: str, **options: Any) -> dict[str, Any]:
        nights.write(suite)
        return nights.night("--toggles", str(nights.root / "more"), *words, code=code, **options)

    return run_night


@pytest.mark.parametrize("suite", [KNOWN, DIES], ids=["assertion", "death"])
def test_a_failure_that_the_fix_removes_is_known_and_the_run_is_green(
    night: Callable[..., dict[str, Any]], suite: str
) -> None:
    [failure] = night(suite, 0)["failures"]
    assert failure["known"] == ["toy-still-buggy"]


def test_the_terminal_shows_a_known_bug(nights: Nights) -> None:
    (nights.root / "more").mkdir()
    (nights.root / "more" / "toy-still-buggy.yaml").write_text(TOGGLE)
    nights.write(KNOWN)
    words = ("--toggles", str(nights.root / "more"))
    done = nights.run_until(lambda done: "1 known" in done.stdout, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "known: " in done.stdout
    assert "this release has the bug of toy-still-buggy" in done.stdout
    assert "0 failures, 1 known" in done.stdout


@pytest.mark.parametrize("suite", [ANOTHER_WAY, SAME_LINE], ids=["another line", "the same line"])
def test_a_failure_that_stays_with_the_fix_is_red(
    night: Callable[..., dict[str, Any]], suite: str
) -> None:

    def is_enough(night: dict[str, Any]) -> bool:
        new = [one["repro"]["arguments"] for one in night["failures"] if not one["known"]]
        return new == [["number=900"]] and len(night["failures"]) == 2

    found = night(suite, 1, is_enough=is_enough)
    known = [one["known"] for one in found["failures"]]
    assert sorted(known) == [[], ["toy-still-buggy"]]
    [new] = [one["repro"] for one in found["failures"] if not one["known"]]
    assert new["arguments"] == ["number=900"]


def test_a_failure_that_does_not_fail_again_is_red(night: Callable[..., dict[str, Any]]) -> None:
    [failure] = night(UNSTEADY, 1)["failures"]
    assert failure["known"] == []


def test_with_its_fix_applied_a_failure_is_never_known(
    night: Callable[..., dict[str, Any]],
) -> None:
    suite = KNOWN.replace("3 * 2", "5")
    [failure] = night(suite, 1, "--enable", "toy-still-buggy")["failures"]
    assert failure["known"] == []
