"""A history on a terminal: what fails now, what wavers, what it costs, one line in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from harness.runs.history.resource_prices import ResourcePrices
from harness.runs.history.values import NightHistory, Timeline, TimelineState
from reports.history import view
from reports.history.view import STATE_MARKS, HistoryView
from reports.shared import formatting
from reports.shared.formatting import to_single_line as short
from reports.shared.terminal import TONE_STYLES, to_plain_text
from reports.shared.terminal import make_table as columns

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS = 20  # rows of a table; the rest is counted
MAX_NIGHTS = 30  # squares of a row


def print_run(history: NightHistory, prices: ResourcePrices, console: Console) -> None:
    seen = HistoryView(history, prices)
    tables = (
        make_failing_table(seen),
        make_flaky_table(seen),
        make_slower_table(seen),
        make_costliest_table(seen),
        make_cost_table(seen),
    )
    for table in tables:
        if table.row_count:
            console.print(table)
            console.print()
    for problem in seen.problems:
        console.print(to_plain_text(short(problem, 300), "yellow"), soft_wrap=True)
    console.print(format_summary(seen), soft_wrap=True)


def make_failing_table(history_view: HistoryView) -> Table:
    mended = history_view.history.select_by_state(TimelineState.MENDED)
    table = columns("", "kind", "what", "nights", "since", "what it said")
    for rows in (history_view.failing, mended):
        for line in rows[:MAX_ROWS]:
            table.add_row(
                _format_mark(line.state),
                to_plain_text(line.item.kind),
                to_plain_text(short(line.item.title, 70)),
                format_nights(line, history_view),
                to_plain_text(view.describe_since(line, history_view)),
                to_plain_text(short(view.describe_last_failure(line), 70), "dim"),
            )
        if len(rows) > MAX_ROWS:
            table.add_row("", "", f"and {len(rows) - MAX_ROWS} more; the page has them")
    return table


def format_nights(line: Timeline, history_view: HistoryView) -> Text:
    """The last nights, a sign each."""
    told = Text()
    for mark in view.make_night_marks(line, len(history_view.history.nights))[-MAX_NIGHTS:]:
        told.append(mark.glyph if mark else " ", TONE_STYLES[mark.tone] if mark else "")
    return told


def make_flaky_table(history_view: HistoryView) -> Table:
    table = columns("flaky", "kind", "what", "nights", "repeats")
    for line in history_view.flaky[:MAX_ROWS]:
        table.add_row(
            f"{line.score.share:.0%}",
            to_plain_text(line.item.kind),
            to_plain_text(short(line.item.title, 70)),
            format_nights(line, history_view),
            f"{line.score.differing} of {line.score.compared} otherwise",
        )
    return table


def make_slower_table(history_view: HistoryView) -> Table:
    table = columns("slower", "kind", "what", "newest", "median")
    for line in history_view.slower[:MAX_ROWS]:
        table.add_row(
            f"{line.slowdown:.1f} times",
            to_plain_text(line.item.kind),
            to_plain_text(short(line.item.title, 70)),
            formatting.format_duration(line.informative_points[-1].main_observation.seconds),
            formatting.format_duration(line.median_seconds),
        )
    return table


def make_costliest_table(history_view: HistoryView) -> Table:
    table = columns("dearest", "kind", "what", "newest", "median")
    for line in history_view.costliest[:5]:
        newest = (
            line.informative_points[-1].main_observation.seconds if line.informative_points else 0.0
        )
        table.add_row(
            history_view.describe_cost(line),
            to_plain_text(line.item.kind),
            to_plain_text(short(line.item.title, 70)),
            formatting.format_duration(newest),
            formatting.format_duration(line.median_seconds),
        )
    return table


def make_cost_table(history_view: HistoryView) -> Table:
    table = columns("cost", "all nights", "newest night")
    for what, whole, newest in history_view.cost_rows:
        table.add_row(to_plain_text(short(what, 60)), whole, newest)
    return table


def format_summary(history_view: HistoryView) -> Text:
    nights = view.format_count(len(history_view.history.nights), "night")
    counts = ", ".join(f"{number} {mark.word}" for mark, number in history_view.counts)
    text = to_plain_text(
        f"{nights} since {history_view.days[0]}: {counts or 'nothing'}. {history_view.statement} "
    )
    word, style = ("green", "bold green") if history_view.history.green else ("red", "bold red")
    return text.append(word, style=style)


def _format_mark(state: TimelineState) -> Text:
    mark = STATE_MARKS[state]
    return Text(f"{mark.glyph} {mark.word}", style=TONE_STYLES[mark.tone])
