"""A review as one HTML file."""

from __future__ import annotations

from harness.store.pr.values import PrRun
from reports.pr import changed_code, view
from reports.shared import html_file

STYLES = ("pr/page.css",)


def render_page(run: PrRun) -> str:
    sections = view.make_sections(run)
    values = {
        "run": run,
        "view": view,
        "code": changed_code,
        "sections": sections,
        "marks": view.MARKS,
    }
    commit = str(run.settings.get("commit", ""))
    return html_file.render_template(
        "pr/page.html.j2", values, [f"SGLang {run.base}..{run.head}"], [commit], styles=STYLES
    )
