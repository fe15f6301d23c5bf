"""A history as one HTML file, without a script: charts first, then tables."""

from __future__ import annotations

from pathlib import Path

from harness.runs.history.resource_prices import ResourcePrices
from harness.runs.history.values import NightHistory, TimelineState
from reports.history import charts, view
from reports.history.view import SILENT_MARK, STATE_MARKS, HistoryView
from reports.shared import html_file

STYLES = ("shared/runs.css", "shared/bars.css", "history/page.css")


def render_page(
    history: NightHistory, prices: ResourcePrices, commit: str, folder: Path | None = None
) -> str:
    """Render the page; rows lead to the pages of runs that stand in its folder."""
    pages = {file.stem for file in folder.glob("*.html")} if folder else set()
    history_view = HistoryView(history, prices, pages)
    values = {
        "report": history_view,
        "history": history,
        "view": view,
        "marks": STATE_MARKS,
        "legend": [mark for state, mark in STATE_MARKS.items() if state is not TimelineState.IDLE]
        + [SILENT_MARK],
        "mended": history.select_by_state(TimelineState.MENDED),
        "trends": charts.make_trend_charts(history_view),
        "costs": charts.make_cost_chart(history_view),
        "charts": charts,
        "rows": view.MAX_ROWS,
    }
    return html_file.render_template(
        "history/page.html.j2",
        values,
        [f"{history_view.days[0]} to {history_view.days[-1]}"],
        [commit],
        styles=STYLES,
    )
