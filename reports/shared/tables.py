"""A table as values: a kind's view makes it once, and a terminal, Markdown and a page show it.

Example: `ReportTable("Faults", ("fault", ""), [[code("paged"), make_mark(CAUGHT_MARK)]])` is a row
`paged  caught` in green on a terminal, and `| <code>paged</code> | ✓ caught |` in Markdown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from reports.shared.marks import ReportMark


@dataclass(frozen=True)
class TableCell:
    """A value in a table: its text and its emphasis."""

    text: str
    tone: str = ""  # the tone of a `ReportMark`: the colour on a terminal
    is_name: bool = False  # shown as code in Markdown
    mark: ReportMark | None = None  # its sign comes before the text
    nights: tuple[ReportMark | None, ...] = ()  # a row of signs, in place of a text
    link: str = ""  # where a page leads from it


TableRows = list[list[TableCell | str]]


@dataclass(frozen=True)
class ReportTable:
    title: str
    heads: tuple[str, ...]
    rows: TableRows
    number_columns: tuple[str, ...] = ()  # flush right, absent where all are empty

    def drop_empty_columns(self) -> ReportTable:
        """Return the table without the number columns in which every row is empty."""
        places = [
            place
            for place, head in enumerate(self.heads)
            if head not in self.number_columns or any(row[place] for row in self.rows)
        ]
        heads = tuple(self.heads[place] for place in places)
        rows: TableRows = [[row[place] for place in places] for row in self.rows]
        return replace(self, heads=heads, rows=rows)


def make_code_cell(text: str, link: str = "") -> TableCell:
    return TableCell(text, is_name=True, link=link)


def make_quiet_cell(text: str) -> TableCell:
    return TableCell(text, "quiet")


def make_mark(mark: ReportMark, tone: str | None = None) -> TableCell:
    """Make a cell of a mark's sign and word; `tone` overrules its own, as for a planted fault."""
    return TableCell(mark.word, mark.tone if tone is None else tone, mark=mark)
