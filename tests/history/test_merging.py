"""Another store's runs are merged as far as they have progressed there."""

from __future__ import annotations

from pathlib import Path

from harness.store.database import Store
from harness.store.fuzz.values import FuzzRun


def make_fuzz_run(status: str, *problems: str) -> FuzzRun:
    return FuzzRun("fuzz-1", "2026-01-01T00:00:00+00:00", status=status, problems=list(problems))


def test_a_run_that_grew_since_it_was_taken_in_is_taken_in_again(tmp_path: Path) -> None:
    here, there = Store(tmp_path / "here.sqlite"), Store(tmp_path / "there.sqlite")
    there.fuzz.save(make_fuzz_run("running"))
    here.merge(there.file)
    there.fuzz.save(make_fuzz_run("stopped", "it grew"))
    here.merge(there.file)
    (run,) = here.fuzz.list_runs()
    assert (run.status, run.problems) == ("stopped", ["it grew"])


def test_one_that_is_finished_here_is_left_as_it_is(tmp_path: Path) -> None:
    here, there = Store(tmp_path / "here.sqlite"), Store(tmp_path / "there.sqlite")
    here.fuzz.save(make_fuzz_run("finished"))
    there.fuzz.save(make_fuzz_run("stopped", "half of it"))
    here.merge(there.file)
    assert here.fuzz.list_runs()[0].problems == []
