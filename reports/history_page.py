"""A history as one HTML file, without a script: pictures first, then what to look at."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from harness.history.costs import Prices
from harness.history.values import History, State
from reports import history_charts, history_view, texts
from reports.eval_view import line as short
from reports.history_view import MARKS, SILENT, HistoryView
from reports.page import TEMPLATES, digest

STYLES = ("page.css", "search.css", "eval.css", "history.css")


def write(history: History, file: Path, prices: Prices) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(html(history, prices), encoding="utf-8")


def html(history: History, prices: Prices) -> str:
    style = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in STYLES)
    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    jinja.filters |= {"duration": texts.duration, "short": short}
    template = jinja.from_string((TEMPLATES / "history.html.j2").read_text(encoding="utf-8"))
    seen = HistoryView(history, prices)
    page = template.render(
        seen=seen,
        history=history,
        view=history_view,
        marks=MARKS,
        legend=[mark for state, mark in MARKS.items() if state is not State.IDLE] + [SILENT],
        mended=history.of(State.MENDED),
        trends=history_charts.trends(seen),
        costs=history_charts.costs(seen),
        charts=history_charts,
        rows=history_view.ROWS,
        style=Markup(style),
        policy=f"default-src 'none'; style-src {digest(style)}; "
        "base-uri 'none'; form-action 'none'",
    )
    return page.encode("utf-8", "backslashreplace").decode("utf-8")
