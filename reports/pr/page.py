"""A review as one HTML file."""

from __future__ import annotations

from harness.store.pr.values import PrRun
from reports.pr import changed_code, view
from reports.shared import html_file
from reports.shared.html_file import PageHead

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
    head = PageHead.make([f"SGLang {run.base}..{run.head}"], [commit])
    return html_file.render_template("pr/page.html.j2", values, head=head, styles=STYLES)
