"""Draws the pictures of the README: what `prove`, `drift` and `bisect` show, as they show it.

.venv/bin/python docs/picture.py        (all releases' sources at hand)

docs/prove.svg and docs/bisect.svg are drawn from recorded runs in bench/recorded/.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from harness import paths
from harness.cli import drift
from harness.drift import survey
from harness.registry import catalogue
from harness.releases import managed
from harness.store.bisect.values import Search
from harness.store.prove.values import Run

sys.path.append(str(paths.project()))
from reports.bisect import terminal
from reports.shared import picture

HERE = Path(__file__).parent
RECORDED = paths.project() / "bench" / "recorded"


def main() -> None:
    toggles = list(catalogue.load())
    trees = [release.sources() for release in managed.all_releases()]
    console = picture.recording(124)
    drift.show(survey(toggles, trees), console)
    picture.save(console, HERE / "drift.svg")
    proof = (RECORDED / "prove-cpu.json").read_bytes()
    picture.svg(msgspec.json.decode(proof, type=Run), HERE / "prove.svg")
    search = (RECORDED / "bisect-27338.json").read_bytes()
    console = picture.recording(112)
    terminal.show(msgspec.json.decode(search, type=Search), console)
    picture.save(console, HERE / "bisect.svg")


if __name__ == "__main__":
    main()
