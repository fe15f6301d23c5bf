"""Compares rows of the zoo on real cards: one with transformers, then several with one.

    python -m bench.run zoo_cards --tp 2 --record FILE [--only ROW …]   on GPUs

A row has the weights, the prompts and the tolerances that `unfix zoo` has. One process loads it on
one card; then a process a rank loads its share. With --only, the other rows of FILE stay. Exit code
1: ranks are off by more than the tolerance. SGLang's norms take no float32 on a card: --dtype.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from bench.measuring import Result, read_record
from harness.runs.zoo.architecture import read_architectures
from harness.runs.zoo.rank_layout import RankLayout

FIRST_PORT = 21000
HOLDS, FAILS = "holds", "fails"
NOT_RUN, STOPPED = "not run", "stopped"
ONE_CARD, RANKS = "one card", "ranks"
REFERENCE = "reference.pt"
ERROR = re.compile(r"\b\w+(Error|Exception|Architecture|Model)\b")
LINE_CHARACTERS = 300
POLL_SECONDS = 0.2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--ep", type=int, default=1)
    parser.add_argument("--dtype", default="", help="instead of each row's own")
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW")
    parser.add_argument("--seconds", type=float, default=300.0, help="of one process")
    parser.add_argument("-j", "--jobs", type=int, default=max((os.cpu_count() or 2) // 3, 1))


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    rows = read_architectures(options.only)
    layout = RankLayout(options.tp, options.pp, options.ep)
    results: dict[str, Any] = {}
    if options.only and options.record and options.record.exists():
        results = read_record(options.record)["rows"]
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {
            pool.submit(compare_row, row.name, layout, options, FIRST_PORT + number): row.name
            for number, row in enumerate(rows)
        }
        for future in as_completed(futures):
            results[futures[future]] = future.result()
            outcomes = dict(sorted(Counter(one[RANKS] for one in results.values()).items()))
            rows_by_name = dict(sorted(results.items()))
            values = {"layout": str(layout), "dtype": options.dtype, "rows": rows_by_name}
            yield Result(values, FAILS not in outcomes, outcomes)


def compare_row(
    name: str, layout: RankLayout, options: argparse.Namespace, port: int
) -> dict[str, Any]:
    """Run the processes of one row, and return its errors or the words of what failed."""
    with tempfile.TemporaryDirectory(prefix="unfix-cards-") as place:
        folder = Path(place)

        def start_process(rank: int, count: int) -> subprocess.Popen[bytes]:
            words = [name, place, rank, count, layout.tp, layout.pp, layout.ep, port]
            with open(folder / f"log-{count}-{rank}", "wb") as log:
                return subprocess.Popen(
                    [sys.executable, "-m", __name__, *map(str, words), options.dtype],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

        result: dict[str, Any] = {ONE_CARD: NOT_RUN, RANKS: NOT_RUN}
        for part, count in ((ONE_CARD, 1), (RANKS, layout.count)):
            processes = [start_process(rank, count) for rank in range(count)]
            ends = wait_for_processes(processes, options.seconds)
            if any(ends):
                logs = [(folder / f"log-{count}-{rank}").read_text() for rank in range(count)]
                stops = [
                    f"exit code {end}: {find_error(log)}"
                    for end, log in zip(ends, logs, strict=True)
                ]
                return result | {part: STOPPED, "stops": stops}
            result |= json.loads((folder / f"{part}.json").read_text())
        return result


def wait_for_processes(processes: list[subprocess.Popen[bytes]], seconds: float) -> list[int]:
    """Return how they ended; the others of one that fails would wait for it, and are killed."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        ends = {process.poll() for process in processes}
        if None not in ends or ends - {0, None}:
            break
        time.sleep(POLL_SECONDS)
    for process in processes:
        if process.poll() is None:
            process.kill()
    return [process.wait() for process in processes]


def find_error(log: str) -> str:
    """Return the last line of a log that names an exception."""
    lines = [line for line in log.splitlines() if ERROR.search(line)]
    return lines[-1][:LINE_CHARACTERS] if lines else ""


def compute_share(
    name: str, folder: Path, rank: int, layout: RankLayout, count: int, port: int, dtype: str
) -> None:
    """Be one process of a row: on one card, or one of several ranks."""
    import torch

    from fixtures.zoo.served_model import serve_model
    from harness.runs.zoo.claims import FALLBACK_CLASSES, THEIR_CODE, AbsentModel
    from harness.runs.zoo.prompts import draw_prompts
    from harness.runs.zoo.reference_model import TransformersModel, measure_error

    [row] = read_architectures([name])
    dtype = dtype or row.dtype
    reference = TransformersModel(row.model_type, row.config, row.quantized, row.adapters)
    if count == 1:
        reference.save(folder / "model", row.sglang_config, row.checkpoint)
        spread: list[str] = []
    else:
        spread = [*layout.list_server_words(), "--nccl-port", str(port)]
    words = [*row.server, *spread]
    model = serve_model(folder / "model", dtype, words, False, reference.adapters, rank)
    if model.model_class in FALLBACK_CLASSES:
        raise AbsentModel(THEIR_CODE)
    prompts = draw_prompts(model.vocabulary, len(reference.adapters))
    logits = model.compute_logits(prompts)
    if count == 1:
        exact, tolerances = reference.measure_tolerances(prompts, getattr(torch, dtype))
        torch.save((logits, tolerances.order), folder / REFERENCE)
        error = measure_error(exact, logits)
        write_error(folder, ONE_CARD, error, tolerances.reference)
    elif layout.is_last_stage(rank) and rank % layout.tp == 0:
        alone, tolerance = torch.load(folder / REFERENCE)
        write_error(folder, RANKS, measure_error(alone, logits), tolerance)


def write_error(folder: Path, part: str, error: float, tolerance: float) -> None:
    verdict = HOLDS if error <= tolerance else FAILS
    values = {part: verdict, f"{part} error": error, f"{part} tolerance": tolerance}
    (folder / f"{part}.json").write_text(json.dumps(values))


def main(words: list[str]) -> None:
    name, place, *numbers = words[:8]
    rank, count, tp, pp, ep, port = map(int, numbers)
    compute_share(name, Path(place), rank, RankLayout(tp, pp, ep), count, port, words[8])


if __name__ == "__main__":
    main(sys.argv[1:])
