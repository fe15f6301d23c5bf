"""A matrix run on a terminal: the failures, the values they share, one line in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from harness.core.wording import format_duration
from harness.store.matrix.values import MatrixCellResult, MatrixRun
from reports.matrix import tables, view
from reports.matrix.view import OUTCOME_MARKS, MatrixView
from reports.shared.formatting import to_single_line
from reports.shared.marks import format_counts
from reports.shared.terminal import TONE_STYLES, append_verdict, print_tables, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_FAILURES = 10  # shown with their logs; the others are counted
LOG_LINES = 6


def print_run(run: MatrixRun, console: Console) -> None:
    matrix_view = view.make_view(run)
    for cell in matrix_view.failures[:MAX_FAILURES]:
        print_failure(run, cell, console)
    more = len(matrix_view.failures) - MAX_FAILURES
    if more > 0:
        console.print(f"and {more} more; the page has all of them\n")
    make_tables = (tables.make_share_table, tables.make_flaky_table, tables.make_slowest_table)
    print_tables((make_table(matrix_view) for make_table in make_tables), console)
    for note in run.notes:
        console.print(to_plain_text(to_single_line(note, 300), "yellow"), soft_wrap=True)
    console.print(format_summary(matrix_view), soft_wrap=True)


def print_failure(run: MatrixRun, cell: MatrixCellResult, console: Console) -> None:
    head = Text(cell.outcome_word, style=TONE_STYLES[OUTCOME_MARKS[cell.outcome_word].tone])
    text = f"  {to_single_line(cell.identity)}  {view.describe_attempts(cell)}"
    console.print(head.append_text(to_plain_text(text, "default")), soft_wrap=True)
    details = view.format_values(cell)
    if inside := view.format_inside_counts(cell):
        details += f"\ninside: {inside}"
    console.print(Padding(to_plain_text(details), (0, 0, 0, 4)))
    if log := view.get_output_tail(cell, LOG_LINES):
        console.print(Padding(to_plain_text(log, "dim"), (0, 0, 0, 4)))
    console.print(to_plain_text(f"    {view.make_replay_command(run, cell)}\n"), soft_wrap=True)


def format_summary(matrix_view: MatrixView) -> Text:
    """Return '40 green, 2 red, in 73 s: red', and the reasons."""
    run = matrix_view.run
    counts = format_counts(matrix_view.counts, "no cells")
    rerun = f", {matrix_view.rerun_count} lost, then rerun" if matrix_view.rerun_count else ""
    name = to_single_line(run.name)
    line = to_plain_text(f"{name}: {counts}{rerun}, in {format_duration(run.seconds)}: ")
    return append_verdict(line, run.green, run.problems)
