"""A zoo run as one HTML file: the table of claims, the failures, the kernels reached."""

from __future__ import annotations

from harness.store.zoo.values import ZooClaim, ZooRun
from reports.shared import html_file
from reports.shared.html_file import PageHead
from reports.zoo import view

STYLES = ("zoo/page.css",)


def render_page(run: ZooRun) -> str:
    values = {"run": run, "view": view, "claims": list(ZooClaim), "marks": view.MARKS}
    head = PageHead.make(
        [f"SGLang {run.release}", f"virtual {run.card}"], [run.machine.get("unfix", "")]
    )
    return html_file.render_template("zoo/page.html.j2", values, head=head, styles=STYLES)
