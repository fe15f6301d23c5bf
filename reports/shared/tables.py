"""A table as values: a kind's view makes it once, and a terminal and Markdown show it.

Example: `ReportTable("Faults", ("fault", ""), [[code("paged"), from_mark(CAUGHT_MARK)]])` is a row
`paged  caught` in green on a terminal, and `| <code>paged</code> | ✓ caught |` in Markdown.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.shared.marks import ReportMark


@dataclass(frozen=True)
class TableCell:
    """A value in a table: its text and its emphasis."""

    text: str
    tone: str = ""  # the tone of a `ReportMark`: the colour on a terminal
    is_name: bool = False  # shown as code in Markdown
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
    """Make a cell of a mark's sign and word; `tone` overrules its own, as for a planted fault."""
    return TableCell(mark.word, mark.tone if tone is None else tone, mark=mark)
