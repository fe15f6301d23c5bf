"""A matrix run on a terminal: what failed, which values it goes with, one line in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.store.matrix.values import MatrixRun, Outcome, RanCell
from reports.matrix import view
from reports.matrix.view import MARKS, MatrixView
from reports.shared import texts
from reports.shared.terminal import STYLES, plain
from reports.shared.terminal import table as columns
from reports.shared.texts import line

if TYPE_CHECKING:
    from rich.console import Console

FAILURES = 10  # shown with their logs; the rest is counted
LOG_LINES = 6
VALUES = 8  # of an axis


def show(run: MatrixRun, console: Console) -> None:
    seen = view.make(run)
    for cell in seen.failures[:FAILURES]:
        failure(run, cell, console)
    if len(seen.failures) > FAILURES:
        console.print(f"and {len(seen.failures) - FAILURES} more; the page has all of them\n")
    for table in (shares(seen), flaky(seen), slowest(seen)):
        if table.row_count:
            console.print(table)
            console.print()
    for note in run.notes:
        console.print(plain(line(note, 300), "yellow"), soft_wrap=True)
    console.print(summary(seen), soft_wrap=True)


def failure(run: MatrixRun, cell: RanCell, console: Console) -> None:
    head = Text(cell.word, style=STYLES[MARKS[cell.word].tone])
    head.append_text(plain(f"  {line(cell.identity)}  {view.how(cell)}", "default"))
    console.print(head, soft_wrap=True)
    told = [view.values(cell)]
    if inside := view.inside(cell):
        told.append(f"inside: {inside}")
    console.print(Padding(plain("\n".join(told)), (0, 0, 0, 4)))
    if log := view.tail(cell, LOG_LINES):
        console.print(Padding(plain(log, "dim"), (0, 0, 0, 4)))
    console.print(plain(f"    {view.replay(run, cell)}\n"), soft_wrap=True)


def shares(seen: MatrixView) -> Table:
    """Which values the failures go with: the axis that tells most first."""
    table = columns("axis", "value", "green", "")
    if not seen.failures:
        return table
    for axis in seen.axes:
        for place, share in enumerate(axis.shares[:VALUES]):
            rest = {word: count for word, count in share.counts.items() if word != Outcome.GREEN}
            table.add_row(
                plain("" if place else line(axis.name, 30)),
                plain(line(share.value, 40)),
                Text(f"{share.told} ({share.percent:.0f}%)", style="" if rest else "green"),
                Text(", ".join(f"{count} {word}" for word, count in rest.items()), style="dim"),
            )
        if len(axis.shares) > VALUES:
            table.add_row("", f"and {len(axis.shares) - VALUES} more")
    return table


def flaky(seen: MatrixView) -> Table:
    table = columns("flaky", "attempts", "values")
    for cell in view.flaky(seen.run.cells)[:VALUES]:
        how = plain(view.how(cell))
        table.add_row(plain(line(cell.identity)), how, plain(view.values(cell)))
    return table


def slowest(seen: MatrixView) -> Table:
    table = columns("slowest", "took", "values")
    for cell in seen.slowest[:5]:
        table.add_row(plain(line(cell.identity)), view.took(cell), plain(view.values(cell)))
    return table


def summary(seen: MatrixView) -> Text:
    """'40 green, 2 red, in 73 s: red', and why."""
    said = [f"{number} {mark.word}" for mark, number in seen.counts] or ["no cells"]
    if seen.rerun:
        said.append(f"{seen.rerun} lost, then rerun")
    said.append(f"in {texts.duration(seen.run.seconds)}")
    text = plain(f"{line(seen.run.name)}: {', '.join(said)}: ")
    if seen.green:
        return text.append("green", style="bold green")
    text.append("red", style="bold red")
    for problem in seen.run.problems:
        text.append("\n  ").append_text(plain(problem, "red"))
    return text
