"""A history on a terminal: what fails now, what wavers, what it costs, one line in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from harness.history.costs import Prices
from harness.history.values import History, Line, State
from reports.history import view
from reports.history.view import MARKS, HistoryView
from reports.shared import texts
from reports.shared.terminal import STYLES, plain
from reports.shared.terminal import table as columns
from reports.shared.texts import line as short

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 20  # rows of a table; the rest is counted
NIGHTS = 30  # squares of a row


def show(history: History, prices: Prices, console: Console) -> None:
    seen = HistoryView(history, prices)
    tables = (failing(seen), flaky(seen), slower(seen), dearest(seen), by_kind(seen))
    for table in tables:
        if table.row_count:
            console.print(table)
            console.print()
    for problem in seen.problems:
        console.print(plain(short(problem, 300), "yellow"), soft_wrap=True)
    console.print(summary(seen), soft_wrap=True)


def failing(seen: HistoryView) -> Table:
    mended = seen.history.of(State.MENDED)
    table = columns("", "kind", "what", "nights", "since", "what it said")
    for rows in (seen.failing, mended):
        for line in rows[:SHOWN]:
            table.add_row(
                _mark(line.state),
                plain(line.thing.kind),
                plain(short(line.thing.title, 70)),
                row(line, seen),
                plain(view.since(line, seen)),
                plain(short(view.words(line), 70), "dim"),
            )
        if len(rows) > SHOWN:
            table.add_row("", "", f"and {len(rows) - SHOWN} more; the page has them")
    return table


def row(line: Line, seen: HistoryView) -> Text:
    """The last nights, a sign each."""
    told = Text()
    for mark in view.squares(line, len(seen.history.nights))[-NIGHTS:]:
        told.append(mark.glyph if mark else " ", STYLES[mark.tone] if mark else "")
    return told


def flaky(seen: HistoryView) -> Table:
    table = columns("flaky", "kind", "what", "nights", "repeats")
    for line in seen.flaky[:SHOWN]:
        table.add_row(
            f"{line.score.share:.0%}",
            plain(line.thing.kind),
            plain(short(line.thing.title, 70)),
            row(line, seen),
            f"{line.score.differ} of {line.score.of} otherwise",
        )
    return table


def slower(seen: HistoryView) -> Table:
    table = columns("slower", "kind", "what", "newest", "median")
    for line in seen.slower[:SHOWN]:
        table.add_row(
            f"{line.slower:.1f} times",
            plain(line.thing.kind),
            plain(short(line.thing.title, 70)),
            texts.duration(line.telling[-1].last.seconds),
            texts.duration(line.median),
        )
    return table


def dearest(seen: HistoryView) -> Table:
    table = columns("dearest", "kind", "what", "newest", "median")
    for line in seen.dearest[:5]:
        newest = line.telling[-1].last.seconds if line.telling else 0.0
        table.add_row(
            seen.told_cost(line),
            plain(line.thing.kind),
            plain(short(line.thing.title, 70)),
            texts.duration(newest),
            texts.duration(line.median),
        )
    return table


def by_kind(seen: HistoryView) -> Table:
    table = columns("cost", "all nights", "newest night")
    for what, whole, newest in seen.spent:
        table.add_row(plain(short(what, 60)), whole, newest)
    return table


def summary(seen: HistoryView) -> Text:
    nights = view.many(len(seen.history.nights), "night")
    counts = ", ".join(f"{number} {mark.word}" for mark, number in seen.counts)
    text = plain(f"{nights} since {seen.days[0]}: {counts or 'nothing'}. {seen.statement} ")
    word, style = ("green", "bold green") if seen.history.green else ("red", "bold red")
    return text.append(word, style=style)


def _mark(state: State) -> Text:
    mark = MARKS[state]
    return Text(f"{mark.glyph} {mark.word}", style=STYLES[mark.tone])
