"""Modules that are imported once and forked often."""

from __future__ import annotations

import gc
import os
import signal

from fixture_types import Output

from harness.core import preloading, process_exit
from harness.core.child_process import call_in_fork, fork_process


def spin_forever() -> None:
    while True:
        pass


def test_a_call_in_a_fork_gives_its_result_or_nothing() -> None:
    assert call_in_fork(lambda: {"answer": 6 * 7}) == {"answer": 42}
    assert call_in_fork(lambda: os._exit(0), silent=True) is None
    assert call_in_fork(lambda: 1 // 0, silent=True) is None
    assert call_in_fork(spin_forever, cpu_seconds=0.05, silent=True) is None


def test_a_fork_never_returns_and_its_exit_code_says_how_it_ended(capfd: Output) -> None:
    assert fork_process(lambda: None).reap() == 0
    assert fork_process(lambda: {"other": 0}["key"], failure_code=70).reap() == 70
    assert "KeyError: 'key'" in capfd.readouterr().err
    code = fork_process(lambda: signal.raise_signal(signal.SIGKILL)).reap()
    assert process_exit.describe_exit(code).words == "killed (SIGKILL)"


def test_a_program_in_a_fork_does_not_unfreeze_what_its_parent_imported() -> None:
    def capture_as_sglang_does() -> dict[str, int]:
        gc.freeze()
        imported = gc.get_freeze_count()
        preloading.ignore_freezing()
        circle: list[object] = []
        circle.append(circle)
        gc.collect()
        gc.freeze()
        del circle
        gc.unfreeze()
        frozen = gc.get_freeze_count()  # some end, as all objects do
        return {"frozen": frozen > imported // 2, "freed": gc.collect() > 0}

    assert call_in_fork(capture_as_sglang_does) == {"frozen": True, "freed": True}
