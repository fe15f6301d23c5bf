"""A mutation run as one HTML file: the scores, and the code with its faults in the margin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.store.mutations import Mutation
from reports import mutate_view, one_file
from reports.page import cut

STYLES = ("page.css", "panel.css", "mutate.css")
FILTERS: dict[str, Callable[..., Any]] = {
    "cut": cut,
    "mark": mutate_view.mark,
    "why": mutate_view.why,
    "change": mutate_view.change,
    "percent": mutate_view.percent,
}


def write(run: Mutation, file: Path) -> None:
    one_file.write(html(run), file)


def html(run: Mutation) -> str:
    values = {
        "seen": mutate_view.make(run),
        "run": run,
        "view": mutate_view,
        "marks": mutate_view.MARKS,
    }
    return one_file.rendered("mutate.html.j2", values, styles=STYLES, filters=FILTERS)
