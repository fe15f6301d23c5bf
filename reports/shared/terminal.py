"""Reports on a terminal: a style for each tone, text as it is, tables, diffs, the last line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from reports.shared import formatting
from reports.shared.tables import ReportTable, TableCell

if TYPE_CHECKING:
    from rich.console import Console

TONE_STYLES = {
    "": "",
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
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def to_plain_text(text: str, style: str = "") -> Text:
    """Make a text without markup, in which every character is visible."""
    return Text(formatting.make_visible(text), style=style)


def make_table(*heads: str) -> Table:
    """Make a table without lines, whose words are folded and never cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold", min_width=min(len(head), 9))
    return table


def print_tables(
    tables: Iterable[ReportTable], console: Console, max_rows: int | None = None
) -> None:
    """Print each table that has rows, followed by a blank line."""
    for table in tables:
        if table.rows:
            console.print(to_rich_table(table, max_rows))
            console.print()


def to_rich_table(table: ReportTable, max_rows: int | None) -> Table:
    """Convert a table to rich's; an empty column of numbers is left out."""
    table = table.drop_empty_columns()
    rich_table = make_table()
    for head in table.heads:
        is_number = head in table.number_columns
        rich_table.add_column(
            to_plain_text(head),
            overflow="fold",
            min_width=min(len(head), 9),
            justify="right" if is_number else "left",
            no_wrap=is_number,
        )
    for row in table.rows[:max_rows]:
        rich_table.add_row(*map(to_rich_cell, row))
    if max_rows is not None and len(table.rows) > max_rows:
        rich_table.add_row(f"and {len(table.rows) - max_rows} more")
    return rich_table


def to_rich_cell(cell: TableCell | str) -> Text:
    if isinstance(cell, str):
        return to_plain_text(cell)
    if cell.nights:
        marks = (mark if mark and mark.glyph else None for mark in cell.nights)
        signs = ((mark.glyph, TONE_STYLES[mark.tone]) if mark else " " for mark in marks)
        return Text.assemble(*signs)
    sign = f"{cell.mark.glyph} " if cell.mark else ""
    return to_plain_text(f"{sign}{cell.text}", TONE_STYLES[cell.tone])


def print_diff(console: Console, diff: str, indent: str = "") -> None:
    for line in diff.splitlines():
        style = DIFF_STYLES.get(line[:1], "")
        console.print(to_plain_text(f"{indent}{line}", style), soft_wrap=True)


def print_ending(
    console: Console,
    green: bool,
    sentence: str,
    problems: Iterable[str],
    run_id: str,
    word: str = "red",
) -> None:
    """Print a run's problems, its verdict with the run in a sentence, and the way to see it.

    `word` is the verdict of a run that is not green: red, or amber where nothing is known.
    """
    style = "bold red" if word == "red" else "bold yellow"
    for problem in problems:
        console.print(to_plain_text(f"{word}: {problem}", style), soft_wrap=True)
    verdict = ("green", "green") if green else (word, style)
    console.print(Text.assemble(verdict, "  ", to_plain_text(sentence)), soft_wrap=True)
    console.print(to_plain_text(f"again: unfix report {run_id}", "dim"))


def append_verdict(
    line: Text, green: bool, problems: Sequence[str], max_problems: int = 100
) -> Text:
    """Append the report's last word, 'green' or 'red', and below it each problem."""
    if green:
        return line.append("green", style="bold green")
    line.append("red", style="bold red")
    for problem in problems[:max_problems]:
        line.append("\n  ").append_text(to_plain_text(problem, "red"))
    if len(problems) > max_problems:
        line.append(f"\n  and {len(problems) - max_problems} more", style="red")
    return line
