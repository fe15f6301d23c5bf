"""Marks: the look of a verdict, an outcome or a state in every report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GOOD_TONES = ("good", "quiet", "bug", "fix")


@dataclass(frozen=True)
class ReportMark:
    """The marks of one answer: a word, three letters, a sign, and a tone."""

    word: str
    short: str
    glyph: str
    tone: str
    meaning: str

    @property
    def good(self) -> bool:
        return self.tone in GOOD_TONES


def make_marks(table: str) -> dict[str, ReportMark]:
    """Make marks by word, from a table with lines of `word | short | glyph | tone | meaning`.

    The columns' order is that of the fields; a column of spaces alone is a blank. Example:
    `hang | HNG | ∞ | death | A side ran past its time limit.`
    """
    rows = (line.split("|") for line in table.strip().splitlines())
    marks = [ReportMark(*(column.strip() for column in row)) for row in rows]
    return {mark.word: mark for mark in marks}


def format_counts(counts: Iterable[tuple[ReportMark, int]], nothing: str) -> str:
    """Return '40 green, 2 red', or `nothing` if there are no counts."""
    return ", ".join(f"{number} {mark.word}" for mark, number in counts) or nothing
