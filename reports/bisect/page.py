"""A search as one HTML file: the verdict, the culprits, and a picture of how they were found."""

from __future__ import annotations

from harness.store.bisect.values import Search
from reports.bisect import view
from reports.shared import one_file
from reports.shared.texts import cut

STYLES = ("shared/page.css", "shared/panel.css", "shared/runs.css")
MOST = 400  # rows; a flaky search joins its runs anyway


def html(search: Search) -> str:
    values = {
        "seen": view.make(search),
        "search": search,
        "glyphs": view.GLYPHS,
        "tones": view.TONES,
        "why": view.WHY,
        "most": MOST,
    }
    return one_file.rendered("bisect/page.html.j2", values, styles=STYLES, filters={"cut": cut})
