"""An audit as one HTML file: each finding with its code, its arithmetic and a plot."""

from __future__ import annotations

from harness.runs.audit.release_audit import ReleaseAudit
from reports.audit import threshold_plot, view
from reports.shared import html_file

STYLES = ("shared/page.css", "shared/bars.css", "audit/page.css")
MAX_FINDINGS = 400  # findings with their code


def render_page(audit: ReleaseAudit) -> str:
    values = {
        "found": audit,
        "view": view,
        "plot": threshold_plot.draw_threshold,
        "most": MAX_FINDINGS,
    }
    return html_file.render_template("audit/page.html.j2", values, styles=STYLES)
