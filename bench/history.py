"""Measures how long reading a month of a large matrix and writing its page takes.

    python -m bench.history [--cells N] [--nights N] [--record FILE]

The nights are written through the real store, with logs of a realistic length.
"""

from __future__ import annotations

import datetime
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.recording import make_parser, record_result
from harness.core import machine
from harness.runs.history import time_window, timelines
from harness.runs.history.resource_prices import ResourcePrices
from harness.runs.history.values import NightHistory
from harness.store.database import Store
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import AttemptOutcome, CellAttempt, MatrixCellResult, MatrixRun
from reports.history import markdown
from reports.history import page as history_page

SHARDS = 8
LOG = "a line of a log, as long as such lines are\n" * 40


def write_nights(store: Store, cells: int, nights: int, now: datetime.datetime) -> None:
    drawn = random.Random(1)
    bad = {number for number in range(cells) if drawn.random() < 0.01}
    for night in range(nights):
        moment = now - datetime.timedelta(days=nights - night)
        for shard in range(SHARDS):
            mine = range(shard, cells, SHARDS)
            run = MatrixRun(
                *(f"m-{night}-{shard}", "fleet", "fleet", "digest", cells, {}),
                moment.isoformat(),
                commit=f"commit-{night // 3}",
                number=shard + 1,
                of=SHARDS,
                cells=[
                    MatrixCellResult(
                        f"{number:05x}",
                        {"release": "0.5.18", "kv": "fp8", "page": str(number)},
                        "prove",
                        ["unfix", "prove"],
                        "",
                    )
                    for number in mine
                ],
            )
            MatrixTable(store).begin(run)
            ended = []
            for number in mine:
                fails = number in bad and drawn.random() < 0.5
                outcome = AttemptOutcome.RED if fails else AttemptOutcome.GREEN
                took = 60 * drawn.random()
                one = CellAttempt(
                    1, outcome, "exit code", run.started, took, took, "n", LOG, {}, True
                )
                ended.append((f"{number:05x}", one))
            MatrixTable(store).save_attempts(run.id, ended)
            run.status = "finished"
            MatrixTable(store).save(run)


def time_history(cells: int, nights: int) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "runs.sqlite"
        begun = time.perf_counter()
        store = Store(file)
        write_nights(store, cells, nights, now)
        written, worked = time.perf_counter(), time.process_time()
        found: NightHistory = timelines.read_history(
            store, time_window.parse_since(f"{nights + 1}d", now), now
        )
        read, worked = time.perf_counter(), time.process_time() - worked
        page = Path(folder) / "page.html"
        page.write_text(
            history_page.render_page(found, ResourcePrices(), machine.describe_commit())
        )
        text = markdown.render_markdown(found, ResourcePrices())
        done = time.perf_counter()
        counts = {str(state): count for state, count in found.counts.items()}
        return {
            "cells": cells,
            "nights": nights,
            "store_megabytes": round(file.stat().st_size / 1e6),
            "seconds_to_write_the_store": round(written - begun, 1),
            "seconds_to_read": round(read - written, 2),
            "of_these_on_a_core": round(worked, 2),
            "seconds_for_page_and_markdown": round(done - read, 2),
            "page_kilobytes": round(page.stat().st_size / 1e3),
            "markdown_kilobytes": round(len(text) / 1e3),
            "counts": counts,
        }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--nights", type=int, default=30)
    arguments = parser.parse_args()
    record_result(time_history(arguments.cells, arguments.nights), arguments.record)


if __name__ == "__main__":
    main()
