"""Draws the picture of the README from the recorded proof of all releases.

.venv/bin/python docs/picture.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from harness.core import paths
from harness.store.prove.values import ProveRun
from harness.store.record_files import read_record_text

sys.path.append(str(paths.project_folder()))
from reports.prove import terminal, view
from reports.shared import terminal_svg

RECORD = paths.project_folder() / "bench" / "recorded" / "proofs" / "cpu.json.xz"
# All families fill three screens; these fit beside the text of the README.
FAMILIES = ("draft_page_table", "kv_indices", "req_to_token", "sparse_prefill", "topk_transform")


def main() -> None:
    run = msgspec.json.decode(read_record_text(RECORD), type=ProveRun)
    shown = {toggle.id for toggle in run.toggles if toggle.family in FAMILIES}
    run.toggles = [toggle for toggle in run.toggles if toggle.id in shown]
    run.cells = [cell for cell in run.cells if cell.toggle in shown]
    console = terminal_svg.make_recording_console(118)
    terminal.print_matrix(view.make_view(run), console)
    terminal_svg.save_svg(console, Path(__file__).parent / "prove.svg")


if __name__ == "__main__":
    main()
