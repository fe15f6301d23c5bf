"""A mutation run as one HTML file: the scores, and the code with its faults in the margin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.store.mutate.values import MutationRun
from reports.mutate import view
from reports.shared import html_file
from reports.shared.formatting import truncate_start

STYLES = ("shared/page.css", "shared/panel.css", "mutate/page.css")
FILTERS: dict[str, Callable[..., Any]] = {
    "cut": truncate_start,
    "mark": view.get_mark,
    "why": view.describe_outcome,
    "change": view.describe_change,
    "percent": view.format_percent,
}


def render_page(run: MutationRun) -> str:
    values = {
        "seen": view.make_view(run),
        "run": run,
        "view": view,
        "marks": view.FATE_MARKS,
    }
    return html_file.render_template("mutate/page.html.j2", values, styles=STYLES, filters=FILTERS)
