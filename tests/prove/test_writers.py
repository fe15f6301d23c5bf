"""Whether a run's process still lives, as its store tells another process."""

from __future__ import annotations

import os

import pytest

from harness.store import writers


def test_this_process_lives_and_one_of_its_number_that_began_otherwise_does_not() -> None:
    assert writers.alive(writers.me())
    boot, _, _, machine = writers.me().split()
    assert not writers.alive(f"{boot} {os.getpid()} 1 {machine}")


def test_nothing_outlives_a_boot_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = writers.me()
    monkeypatch.setattr(writers, "_boot", lambda: "another-boot")
    assert not writers.alive(before)


def test_of_another_machine_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    there = writers.me().rpartition(" ")[0] + " elsewhere"
    monkeypatch.setattr(writers, "_boot", lambda: "another-boot")
    assert writers.alive(there)
    # As stores had it before machines were named.
    assert writers.alive(there.rpartition(" ")[0])
