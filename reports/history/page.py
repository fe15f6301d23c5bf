"""A history as one HTML file, without a script: pictures first, then what to look at."""

from __future__ import annotations

from harness.history.costs import Prices
from harness.history.values import History, State
from reports.history import charts, view
from reports.history.view import MARKS, SILENT, HistoryView
from reports.shared import one_file
from reports.shared.texts import line as short

STYLES = ("shared/page.css", "shared/runs.css", "shared/bars.css", "history/page.css")


def html(history: History, prices: Prices) -> str:
    seen = HistoryView(history, prices)
    values = {
        "seen": seen,
        "history": history,
        "view": view,
        "marks": MARKS,
        "legend": [mark for state, mark in MARKS.items() if state is not State.IDLE] + [SILENT],
        "mended": history.of(State.MENDED),
        "trends": charts.trends(seen),
        "costs": charts.costs(seen),
        "charts": charts,
        "rows": view.ROWS,
    }
    return one_file.rendered(
        "history/page.html.j2", values, styles=STYLES, filters={"short": short}
    )
