"""Draws the pictures of the README: the output of `prove`, `drift` and `bisect` on a terminal.

.venv/bin/python docs/picture.py        (all releases' sources at hand)

docs/prove.svg and docs/bisect.svg are drawn from recorded runs in bench/recorded/.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from harness.cli import drift
from harness.core import paths
from harness.fixes.drift import survey_drift
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases
from harness.store.bisect.values import BisectSearch
from harness.store.prove.values import ProveRun
from harness.store.record_files import read_record_text

sys.path.append(str(paths.project_folder()))
from reports.bisect import terminal
from reports.prove import terminal as prove_terminal
from reports.shared import terminal_svg

HERE = Path(__file__).parent
RECORDED = paths.project_folder() / "bench" / "recorded"


def main() -> None:
    toggles = list(toggle_catalogue.load_catalogue())
    trees = [release.open_sources() for release in managed_releases.list_releases()]
    console = terminal_svg.make_recording_console(124)
    drift.print_drift(survey_drift(toggles, trees), console)
    terminal_svg.save_svg(console, HERE / "drift.svg")
    proof = read_record_text(RECORDED / "proofs" / "cpu.json.xz")
    console = terminal_svg.make_recording_console(124)
    prove_terminal.print_run(msgspec.json.decode(proof, type=ProveRun), console)
    terminal_svg.save_svg(console, HERE / "prove.svg")
    search = read_record_text(RECORDED / "bisect-27338.json.xz")
    console = terminal_svg.make_recording_console(112)
    terminal.print_run(msgspec.json.decode(search, type=BisectSearch), console)
    terminal_svg.save_svg(console, HERE / "bisect.svg")


if __name__ == "__main__":
    main()
