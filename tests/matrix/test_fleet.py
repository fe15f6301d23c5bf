"""A simulated fleet: with deaths, stragglers and failures no cell is lost or run twice."""

from __future__ import annotations

import time
from pathlib import Path

from bench.cases import fleet as bench


def test_two_thousand_cells_on_two_hundred_workers_in_four_shards(tmp_path: Path) -> None:
    begun = time.process_time()
    found = bench.measure_fleet(2000, 200, 4, tmp_path)
    assert time.process_time() - begun < 12  # the page included
    assert found["lost_or_doubled"] == []
    assert found["cells"] == 2000
    assert sum(found["outcomes"].values()) == 2000
    # Each kind of event occurred.
    assert {"passed", "flaky"} <= set(found["outcomes"])
    assert found["lost_then_rerun"] > 5
    assert found["attempts"] > 2000
