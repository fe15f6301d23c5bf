"""A table as values: a kind's view makes it once, a terminal and Markdown each show it.

Example: `ReportTable("Faults", ("fault", ""), [[code("paged"), from_mark(CAUGHT_MARK)]])` is a row
`paged  caught` in green on a terminal, and `| <code>paged</code> | ✓ caught |` in Markdown.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.shared.marks import ReportMark


@dataclass(frozen=True)
class TableCell:
    """A value in a table: how it reads, and how it stands out."""

    text: str
    tone: str = ""  # of a `ReportMark`: the colour on a terminal
    is_name: bool = False  # in the letters of code, in Markdown
    mark: ReportMark | None = None  # its sign comes before the text
    nights: tuple[ReportMark | None, ...] = ()  # a row of signs, in place of a text


TableRows = list[list[TableCell | str]]


@dataclass(frozen=True)
class ReportTable:
    title: str
    heads: tuple[str, ...]
    rows: TableRows
    number_columns: tuple[str, ...] = ()  # flush right on a terminal, absent where all are empty


def code(text: str) -> TableCell:
    return TableCell(text, is_name=True)


def quiet(text: str) -> TableCell:
    return TableCell(text, "quiet")


def from_mark(mark: ReportMark, tone: str | None = None) -> TableCell:
    """A mark by its sign and word; `tone` overrules its own, as for a fault planted on purpose."""
    return TableCell(mark.word, mark.tone if tone is None else tone, mark=mark)
