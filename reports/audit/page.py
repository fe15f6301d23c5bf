"""An audit as one HTML file: each finding with its code, its arithmetic and a plot."""

from __future__ import annotations

from harness.audit.run import Audit
from reports.audit import plot, view
from reports.shared import one_file

STYLES = ("shared/page.css", "audit/page.css")
MOST = 400  # findings with their code


def html(found: Audit) -> str:
    values = {"found": found, "view": view, "plot": plot.svg, "most": MOST}
    return one_file.rendered("audit/page.html.j2", values, styles=STYLES)
