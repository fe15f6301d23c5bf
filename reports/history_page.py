"""A history as one HTML file, without a script: pictures first, then what to look at."""

from __future__ import annotations

from pathlib import Path

from harness.history.costs import Prices
from harness.history.values import History, State
from reports import history_charts, history_view, one_file
from reports.eval_view import line as short
from reports.history_view import MARKS, SILENT, HistoryView

STYLES = ("page.css", "search.css", "eval.css", "history.css")


def write(history: History, file: Path, prices: Prices) -> None:
    one_file.write(html(history, prices), file)


def html(history: History, prices: Prices) -> str:
    seen = HistoryView(history, prices)
    values = {
        "seen": seen,
        "history": history,
        "view": history_view,
        "marks": MARKS,
        "legend": [mark for state, mark in MARKS.items() if state is not State.IDLE] + [SILENT],
        "mended": history.of(State.MENDED),
        "trends": history_charts.trends(seen),
        "costs": history_charts.costs(seen),
        "charts": history_charts,
        "rows": history_view.ROWS,
    }
    return one_file.rendered("history.html.j2", values, styles=STYLES, filters={"short": short})
