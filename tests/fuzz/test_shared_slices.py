"""Slices that share a process, as on a GPU: a failure is one of its test alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from nights import Nights, by_test, read_failures

DRIVER = """
import sys
from harness.cli import main
from harness.core import device
device.shares_processes = lambda _: True
sys.exit(main.main(sys.argv[1:]))
"""
SUITE = """
@given(number=st.integers(0, 10**9))
def test_passes(number):
    pass

@given(number=st.integers(0, 1000))
def test_fails(number):
    assert number < 500, f"{number} is rather large"

@given(number=st.integers(0, 100))
def test_dies(number):
    if number > 90:
        os.kill(os.getpid(), signal.SIGSEGV)

@given(number=st.integers(0, 100))
def test_hangs(number):
    while number > 90:
        time.sleep(0.1)
"""
LEAKING = """
@given(number=st.integers(0, 10**9))
def test_first(number):
    forms.plain.is_broken = True

@given(number=st.integers(0, 10**9))
def test_second(number):
    assert not hasattr(forms.plain, "is_broken")
"""


class SharedNights(Nights):
    """`unfix fuzz` whose tests share processes."""

    def words(self, *words: str) -> list[str]:
        driver = self.root / "driver.py"
        driver.write_text(DRIVER)
        _, _, _, *own = super().words(*words)
        return [sys.executable, str(driver), *own]


@pytest.fixture
def shared_nights(tmp_path: Path) -> SharedNights:
    return SharedNights(tmp_path)


def test_failures_deaths_and_hangs_are_found_as_in_forks(shared_nights: SharedNights) -> None:
    shared_nights.write(SUITE)

    def is_enough(night: dict[str, Any]) -> bool:
        return {"fails", "dies", "hangs"} <= read_failures(night).keys()

    night = shared_nights.night("--limit", "1", "--seed", "3", seconds=4, is_enough=is_enough)
    found = read_failures(night)
    assert found.keys() == {"fails", "dies", "hangs"}
    assert [one["arguments"] for one in found["fails"]] == [["number=500"]]
    assert {one["error"] for one in found["dies"]} == {"segfault"}
    assert {one["error"] for one in found["hangs"]} == {"hang"}
    assert by_test(night)["passes"]["examples"] > 0


def test_what_another_slice_left_is_no_failure(shared_nights: SharedNights) -> None:
    shared_nights.write(LEAKING)

    def is_enough(night: dict[str, Any]) -> bool:
        return bool(night["problems"] or night["failures"])

    night = shared_nights.night("-j", "1", is_enough=is_enough)
    assert night["failures"] == []
    (problem,) = night["problems"]
    assert "a process that had run other tests, and not in a new one" in problem
    assert by_test(night)["second"]["examples"] > 0
