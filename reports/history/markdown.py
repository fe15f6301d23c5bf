"""A history as Markdown, for the summary of a job."""

from __future__ import annotations

from harness.runs.history.resource_prices import ResourcePrices
from harness.runs.history.values import NightHistory
from reports.history import tables
from reports.history.view import HistoryView
from reports.shared import markdown
from reports.shared.formatting import to_single_line
from reports.shared.markdown import escape_text
from reports.shared.marks import format_counts

MAX_ROWS = 50
MAX_NIGHTS = 14


def render_markdown(history: NightHistory, prices: ResourcePrices) -> str:
    history_view = HistoryView(history, prices)
    counts = format_counts(history_view.counts, "nothing")
    all_tables = tables.make_tables(history_view, MAX_NIGHTS)
    all_tables.append(tables.make_cost_table(history_view))
    return markdown.join_parts(
        [
            markdown.render_heading(f"The nights since {history_view.days[0]}", history.green),
            f"**{escape_text(history_view.statement)}** {escape_text(counts)}.",
            "\n".join(
                f"- {escape_text(to_single_line(problem, 300))}"
                for problem in history_view.problems
            ),
            *(markdown.render_report_table(table, MAX_ROWS) for table in all_tables),
        ]
    )
