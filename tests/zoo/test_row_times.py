"""What a row took of a processor is measured in its forks, and shown."""

from __future__ import annotations

import time
from pathlib import Path

from harness.core.outcomes import RunStatus
from harness.store.zoo.values import ArchitectureResult, ZooRun
from harness.workers.fork_lanes import measure_processor_seconds, run_fork
from reports.zoo.view import describe_run, make_tables

SPIN_SECONDS = 0.2
TIMES = {"llama": 1.8, "qwen3": 4.2}


def spin_processor() -> None:
    while time.process_time() < SPIN_SECONDS:
        pass


def test_a_fork_counts_once_it_has_ended(tmp_path: Path) -> None:
    before = measure_processor_seconds()
    assert run_fork(tmp_path / "0", 60, spin_processor).is_normal
    assert measure_processor_seconds() - before > SPIN_SECONDS / 2


def test_each_row_has_its_time_and_the_run_its_longest() -> None:
    rows = [ArchitectureResult(name, processor_seconds=used) for name, used in TIMES.items()]
    run = ZooRun(id="1", started="", release="0.5.23", card="H100", status=RunStatus.FINISHED)
    run.planned, run.architectures = list(TIMES), rows
    assert "6.0 s of a processor, 4.2 s for the longest row" in describe_run(run)
    (table,) = make_tables(run)
    column = list(table.heads).index("processor")
    assert [row[column] for row in table.rows] == [f"{used:.1f} s" for used in TIMES.values()]
