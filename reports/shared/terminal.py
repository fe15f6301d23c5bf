"""What every report on a terminal has: a style a tone, and text as it is."""

from __future__ import annotations

from rich.text import Text

from reports.shared import texts

STYLES = {
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


def plain(text: str, style: str = "") -> Text:
    """Text as it is: no markup is read, nothing is hidden."""
    return Text(texts.visible(text), style=style)
