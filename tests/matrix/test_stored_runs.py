"""A matrix run in the store, and its result there."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

from driving import Drive, make_cell

from harness.core.outcomes import Outcome, RunStatus
from harness.store.database import Store
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import ATTEMPT_OUTCOMES, CellAttempt, MatrixCellResult, MatrixRun


def make_run(**changes: Any) -> MatrixRun:
    run = MatrixRun("m-1", "tried", "file.yaml", "digest-1", 1, {}, "2026-01-01T00:00:00+00:00")
    run.cells = [MatrixCellResult("a", {"kv": "fp8"}, "work", ["true"], "covering")]
    for name, value in changes.items():
        setattr(run, name, value)
    return run


def test_a_stored_run_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    run = make_run()
    MatrixTable(store).begin(run)
    tried = [
        CellAttempt(1, Outcome.FAILED, "exit code 1", "then", 2.0, output="</script> \x00"),
        CellAttempt(2, Outcome.PASSED, "exit code 0", "then", 3.0, 3.0, last=True),
    ]
    MatrixTable(store).save_attempts(run.id, [("a", one) for one in tried])
    run.status, run.seconds = RunStatus.FINISHED, 5.0
    MatrixTable(store).save(run)
    read = MatrixTable(store).find("m-")
    assert read is not None
    run.cells[0].attempts = tried
    assert read == run
    assert (read.cells[0].seconds, read.device_seconds) == (5.0, 3.0)


def test_a_run_says_on_what_machine_and_with_which_versions_it_was_made(drive: Drive) -> None:
    drive.write(make_cell("one", "true"))
    record = drive.root / "record.json"
    assert drive.run("--record", str(record)) == 0
    recorded_machine = json.loads(record.read_text())["machine"]
    assert recorded_machine == drive.newest().machine
    assert recorded_machine["python"] == platform.python_version()
    assert {"date", "system", "cores", "gpu", "unfix"} <= recorded_machine.keys()


def test_the_time_of_a_cell_is_the_median_of_its_green_and_red_attempts(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    MatrixTable(store).begin(make_run())
    ends = [
        *((Outcome.PASSED, 1.0), (Outcome.FAILED, 3.0), (Outcome.PASSED, 10.0)),
        *((Outcome.HANG, 900.0), (Outcome.LOST, 700.0), (Outcome.NOT_READY, 0.0)),
    ]
    for number, (outcome, seconds) in enumerate(ends, 1):
        attempt = CellAttempt(number, outcome, "", "then", seconds)
        MatrixTable(store).save_attempts("m-1", [("a", attempt)])
    assert MatrixTable(store).load_median_seconds() == {"a": 3.0}


def test_nothing_that_is_not_wholly_green_is_green() -> None:
    for word in (*ATTEMPT_OUTCOMES, Outcome.FLAKY):
        run = make_run(status=RunStatus.FINISHED)
        first = [CellAttempt(1, Outcome.FAILED, "", "then")] if word is Outcome.FLAKY else []
        last = Outcome.PASSED if word is Outcome.FLAKY else word
        run.cells[0].attempts = [*first, CellAttempt(2, last, "", "then", last=True)]
        assert run.cells[0].outcome_word == word
        assert run.green is (word is Outcome.PASSED)
        expected = {Outcome.PASSED: 0, Outcome.NOT_READY: 3}.get(word, 1)
        assert run.exit_code == expected
    assert make_run(status=RunStatus.FINISHED).problems == ["1 cell without an outcome"]
    assert make_run(status=RunStatus.FINISHED, cells=[]).exit_code == 1
    green = make_run(status=RunStatus.STOPPED)
    green.cells[0].attempts = [CellAttempt(1, Outcome.PASSED, "", "then", last=True)]
    assert green.problems == ["the run was stopped"]
