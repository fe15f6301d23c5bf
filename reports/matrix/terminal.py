"""A matrix run on a terminal: what failed, which values it goes with, one line in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.store.matrix.values import AttemptOutcome, MatrixCellResult, MatrixRun
from reports.matrix import view
from reports.matrix.view import OUTCOME_MARKS, MatrixView
from reports.shared import formatting
from reports.shared.formatting import to_single_line
from reports.shared.terminal import TONE_STYLES, to_plain_text
from reports.shared.terminal import make_table as columns

if TYPE_CHECKING:
    from rich.console import Console

MAX_FAILURES = 10  # shown with their logs; the rest is counted
LOG_LINES = 6
MAX_VALUES = 8  # of an axis


def print_run(run: MatrixRun, console: Console) -> None:
    seen = view.make_view(run)
    for cell in seen.failures[:MAX_FAILURES]:
        print_failure(run, cell, console)
    if len(seen.failures) > MAX_FAILURES:
        console.print(f"and {len(seen.failures) - MAX_FAILURES} more; the page has all of them\n")
    for table in (make_share_table(seen), make_flaky_table(seen), make_slowest_table(seen)):
        if table.row_count:
            console.print(table)
            console.print()
    for note in run.notes:
        console.print(to_plain_text(to_single_line(note, 300), "yellow"), soft_wrap=True)
    console.print(format_summary(seen), soft_wrap=True)


def print_failure(run: MatrixRun, cell: MatrixCellResult, console: Console) -> None:
    head = Text(cell.outcome_word, style=TONE_STYLES[OUTCOME_MARKS[cell.outcome_word].tone])
    head.append_text(
        to_plain_text(
            f"  {to_single_line(cell.identity)}  {view.describe_attempts(cell)}", "default"
        )
    )
    console.print(head, soft_wrap=True)
    told = [view.format_values(cell)]
    if inside := view.format_inside_counts(cell):
        told.append(f"inside: {inside}")
    console.print(Padding(to_plain_text("\n".join(told)), (0, 0, 0, 4)))
    if log := view.get_output_tail(cell, LOG_LINES):
        console.print(Padding(to_plain_text(log, "dim"), (0, 0, 0, 4)))
    console.print(to_plain_text(f"    {view.make_replay_command(run, cell)}\n"), soft_wrap=True)


def make_share_table(matrix_view: MatrixView) -> Table:
    """Which values the failures go with: the axis that tells most first."""
    table = columns("axis", "value", "green", "")
    if not matrix_view.failures:
        return table
    for axis in matrix_view.axes:
        for place, share in enumerate(axis.shares[:MAX_VALUES]):
            rest = {
                word: count for word, count in share.counts.items() if word != AttemptOutcome.GREEN
            }
            table.add_row(
                to_plain_text("" if place else to_single_line(axis.name, 30)),
                to_plain_text(to_single_line(share.value, 40)),
                Text(
                    f"{share.fraction_text} ({share.percent:.0f}%)", style="" if rest else "green"
                ),
                Text(", ".join(f"{count} {word}" for word, count in rest.items()), style="dim"),
            )
        if len(axis.shares) > MAX_VALUES:
            table.add_row("", f"and {len(axis.shares) - MAX_VALUES} more")
    return table


def make_flaky_table(matrix_view: MatrixView) -> Table:
    table = columns("flaky", "attempts", "values")
    for cell in view.list_flaky_cells(matrix_view.run.cells)[:MAX_VALUES]:
        how = to_plain_text(view.describe_attempts(cell))
        table.add_row(
            to_plain_text(to_single_line(cell.identity)),
            how,
            to_plain_text(view.format_values(cell)),
        )
    return table


def make_slowest_table(matrix_view: MatrixView) -> Table:
    table = columns("slowest", "took", "values")
    for cell in matrix_view.slowest[:5]:
        table.add_row(
            to_plain_text(to_single_line(cell.identity)),
            view.format_time_taken(cell),
            to_plain_text(view.format_values(cell)),
        )
    return table


def format_summary(matrix_view: MatrixView) -> Text:
    """'40 green, 2 red, in 73 s: red', and why."""
    said = [f"{number} {mark.word}" for mark, number in matrix_view.counts] or ["no cells"]
    if matrix_view.rerun_count:
        said.append(f"{matrix_view.rerun_count} lost, then rerun")
    said.append(f"in {formatting.format_duration(matrix_view.run.seconds)}")
    text = to_plain_text(f"{to_single_line(matrix_view.run.name)}: {', '.join(said)}: ")
    if matrix_view.green:
        return text.append("green", style="bold green")
    text.append("red", style="bold red")
    for problem in matrix_view.run.problems:
        text.append("\n  ").append_text(to_plain_text(problem, "red"))
    return text
