"""A review as one HTML file."""

from __future__ import annotations

from harness.store.pr.values import PrRun
from reports.pr import view
from reports.shared import html_file

STYLES = ("shared/page.css", "pr/page.css")


def render_page(run: PrRun) -> str:
    sections = view.make_sections(run)
    values = {"run": run, "view": view, "sections": sections, "marks": view.MARKS}
    return html_file.render_template("pr/page.html.j2", values, styles=STYLES)
