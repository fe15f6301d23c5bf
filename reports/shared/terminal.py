"""What every report on a terminal has: a style a tone, and text as it is."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from reports.shared import formatting

TONE_STYLES = {
    "good": "green",
    "bug": "yellow",
    "fix": "green",
    "quiet": "dim",
    "toothless": "bold red",
    "unreached": "bold yellow",
    "broken": "bold red",
    "stale": "bold red",
    "missing": "bold magenta",
    "death": "bold red",
}


def to_plain_text(text: str, style: str = "") -> Text:
    """Text as it is: no markup is read, nothing is hidden."""
    return Text(formatting.make_visible(text), style=style)


def make_table(*heads: str) -> Table:
    """Columns without lines, whose words are folded and never cut."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        made.add_column(head, overflow="fold", min_width=min(len(head), 9))
    return made
