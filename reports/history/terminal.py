"""A history on a terminal: failures, flaky items, costs, one line in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.wording import format_count
from harness.runs.history.resource_prices import ResourcePrices
from harness.runs.history.values import NightHistory
from reports.history import tables
from reports.history.view import HistoryView
from reports.shared.formatting import to_single_line
from reports.shared.marks import format_counts
from reports.shared.terminal import append_verdict, print_tables, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS = 20  # rows of a table; the others are counted
MAX_NIGHTS = 30  # signs of a row
MAX_COSTLIEST_ROWS = 5


def print_run(history: NightHistory, prices: ResourcePrices, console: Console) -> None:
    history_view = HistoryView(history, prices)
    print_tables(tables.make_tables(history_view, MAX_NIGHTS), console, MAX_ROWS)
    print_tables([tables.make_costliest_table(history_view)], console, MAX_COSTLIEST_ROWS)
    print_tables([tables.make_cost_table(history_view)], console)
    for problem in history_view.problems:
        console.print(to_plain_text(to_single_line(problem, 300), "yellow"), soft_wrap=True)
    nights = format_count(len(history.nights), "night")
    counts = format_counts(history_view.counts, "nothing")
    line = f"{nights} since {history_view.days[0]}: {counts}. {history_view.statement} "
    console.print(append_verdict(to_plain_text(line), history.green, []), soft_wrap=True)
