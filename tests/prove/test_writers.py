"""Whether a run's process still lives, as its store tells another process."""

from __future__ import annotations

import os

import pytest

from harness.store import writer_process


def test_this_process_lives_and_one_of_its_number_that_began_otherwise_does_not() -> None:
    assert writer_process.is_process_alive(writer_process.identify_this_process())
    boot, _, _, machine = writer_process.identify_this_process().split()
    assert not writer_process.is_process_alive(f"{boot} {os.getpid()} 1 {machine}")


def test_nothing_outlives_a_boot_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = writer_process.identify_this_process()
    monkeypatch.setattr(writer_process, "_read_boot_id", lambda: "another-boot")
    assert not writer_process.is_process_alive(before)


def test_of_another_machine_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    there = writer_process.identify_this_process().rpartition(" ")[0] + " elsewhere"
    monkeypatch.setattr(writer_process, "_read_boot_id", lambda: "another-boot")
    assert writer_process.is_process_alive(there)
    # As stores had it before machines were named.
    assert writer_process.is_process_alive(there.rpartition(" ")[0])
