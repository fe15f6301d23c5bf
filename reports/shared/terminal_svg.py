"""The picture of a terminal, as an SVG that fetches no font from the network."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

# A frame without rich's own: that one fetches a font.
SVG_FRAME = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
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
DEFAULT_COLUMNS = 124


def make_recording_console(width: int = DEFAULT_COLUMNS) -> Console:
    """Make a console that prints nowhere and records everything, in colours."""
    return Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )


def save_svg(console: Console, file: Path) -> None:
    """Save a recording console's output as a picture; the file's name separates its styles."""
    file.parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(
        str(file),
        theme=DIMMED_MONOKAI,
        code_format=SVG_FRAME,
        unique_id=re.sub(r"\W", "-", file.stem),
    )
