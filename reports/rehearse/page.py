"""A rehearsal as one HTML file: memory as bars, findings, kernels by nearness to 2^31."""

from __future__ import annotations

from harness.store.rehearse.values import RehearsalRun
from reports.rehearse import view
from reports.shared import html_file

STYLES = ("rehearse/page.css",)


def render_page(run: RehearsalRun) -> str:
    values = {"run": run, "view": view}
    return html_file.render_template(
        "rehearse/page.html.j2",
        values,
        [f"SGLang {run.release}", *run.toggles],
        [run.machine.get("unfix", "")],
        styles=STYLES,
    )
