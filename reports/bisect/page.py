"""A search as one HTML file: the verdict, the culprits, and a picture of how they were found."""

from __future__ import annotations

import shlex

from harness.store.bisect.values import BisectSearch
from reports.bisect import view
from reports.shared import html_file

STYLES = ("shared/panel.css", "shared/runs.css")
MAX_ROWS = 400  # runs of one set, as of a flaky symptom, share a row


def render_page(search: BisectSearch) -> str:
    search_view = view.make_view(search)
    values = {
        "report": search_view,
        "answer": view.describe_search(search_view),
        "search": search,
        "glyphs": view.GLYPHS,
        "tones": view.TONES,
        "why": view.PURPOSES,
        "most": MAX_ROWS,
    }
    return html_file.render_template(
        "bisect/page.html.j2",
        values,
        [search.kind, shlex.join(search.symptom_command)],
        [search.machine.get("unfix", "")],
        styles=STYLES,
    )
