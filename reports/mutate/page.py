"""A mutation run as one HTML file: the scores, and the code with its faults in the margin."""

from __future__ import annotations

from harness.store.mutate.values import MutationRun
from reports.mutate import view
from reports.shared import html_file

STYLES = ("shared/panel.css", "mutate/page.css")


def render_page(run: MutationRun) -> str:
    values = {"report": view.make_view(run), "run": run, "view": view, "marks": view.FATE_MARKS}
    return html_file.render_template(
        "mutate/page.html.j2",
        values,
        [f"SGLang {run.release}", run.machine.get("sources", "")],
        [run.settings.get("commit", "")],
        styles=STYLES,
    )
