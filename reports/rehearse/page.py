"""A rehearsal as one HTML file: memory as bars, findings, kernels by nearness to 2^31."""

from __future__ import annotations

from harness.store.rehearse.values import RehearsalRun
from reports.rehearse import view
from reports.shared import html_file

STYLES = ("shared/page.css", "rehearse/page.css")


def render_page(run: RehearsalRun) -> str:
    return html_file.render_template(
        "rehearse/page.html.j2", {"run": run, "view": view}, styles=STYLES
    )
