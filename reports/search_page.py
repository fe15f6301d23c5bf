"""A search as one HTML file: the verdict, the culprits, and a picture of how they were found."""

from __future__ import annotations

from pathlib import Path

from harness.store.searches import Search
from reports import one_file, search_view
from reports.page import cut

STYLES = ("page.css", "panel.css", "search.css")
MOST = 400  # rows; a flaky search joins its runs anyway


def write(search: Search, file: Path) -> None:
    one_file.write(html(search), file)


def html(search: Search) -> str:
    values = {
        "seen": search_view.make(search),
        "search": search,
        "glyphs": search_view.GLYPHS,
        "tones": search_view.TONES,
        "why": search_view.WHY,
        "most": MOST,
    }
    return one_file.rendered("search.html.j2", values, styles=STYLES, filters={"cut": cut})
