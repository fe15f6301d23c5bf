"""Draws docs/drift.svg: what `unfix drift` shows, as it shows it.

.venv/bin/python docs/picture.py        (all releases' sources at hand)
"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from harness.cli import drift_command
from harness.registry import catalogue
from harness.releases import managed
from harness.releases.drift import survey

# A frame without rich's own: that one fetches a font from the network.
FRAME = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
<rect width="{width}" height="{height}" rx="10" fill="#191919"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def main() -> None:
    toggles = list(catalogue.load())
    trees = [release.sources() for release in managed.all_releases()]
    console = Console(record=True, width=124, file=io.StringIO(), force_terminal=True)
    drift_command.show(survey(toggles, trees), console)
    console.save_svg(
        str(Path(__file__).with_name("drift.svg")),
        theme=DIMMED_MONOKAI,
        code_format=FRAME,
        unique_id="drift",
    )


if __name__ == "__main__":
    main()
