"""Draws the pictures of the README: what `unfix prove` and `unfix drift` show, as they show it.

.venv/bin/python docs/picture.py        (all releases' sources at hand)

docs/proof.svg is drawn from the recorded run in bench/recorded/prove-cpu.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from harness import paths
from harness.cli import drift_command
from harness.registry import catalogue
from harness.releases import managed
from harness.releases.drift import survey
from harness.store.records import Run

sys.path.append(str(paths.project()))
from reports import picture

HERE = Path(__file__).parent
RECORDED = paths.project() / "bench" / "recorded" / "prove-cpu.json"


def main() -> None:
    toggles = list(catalogue.load())
    trees = [release.sources() for release in managed.all_releases()]
    console = picture.recording(124)
    drift_command.show(survey(toggles, trees), console)
    picture.save(console, HERE / "drift.svg")
    proof = RECORDED.read_bytes()
    picture.svg(msgspec.json.decode(proof, type=Run), HERE / "proof.svg")


if __name__ == "__main__":
    main()
