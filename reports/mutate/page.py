"""A mutation run as one HTML file: the scores, and the code with its faults in the margin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.store.mutate.values import Mutation
from reports.mutate import view
from reports.shared import one_file
from reports.shared.texts import cut

STYLES = ("shared/page.css", "shared/panel.css", "mutate/page.css")
FILTERS: dict[str, Callable[..., Any]] = {
    "cut": cut,
    "mark": view.mark,
    "why": view.why,
    "change": view.change,
    "percent": view.percent,
}


def html(run: Mutation) -> str:
    values = {
        "seen": view.make(run),
        "run": run,
        "view": view,
        "marks": view.MARKS,
    }
    return one_file.rendered("mutate/page.html.j2", values, styles=STYLES, filters=FILTERS)
