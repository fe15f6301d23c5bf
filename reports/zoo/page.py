"""A zoo run as one HTML file: the table of claims, the failures, the kernels reached."""

from __future__ import annotations

from harness.store.zoo.values import FAMILY_CLAIMS, ZooRun
from reports.shared import html_file
from reports.zoo import view

STYLES = ("zoo/page.css",)
MODEL_HINT = (
    "A cell shows the largest difference of logits, relative to the largest logit, and the "
    "tolerance."
)
FAMILY_HINT = "Kernels that no architecture launches, each against its formula in torch."


def render_page(run: ZooRun) -> str:
    kinds = (
        ("architectures", "Architectures", run.models, run.model_claims, MODEL_HINT),
        ("families", "Kernel families", run.families, FAMILY_CLAIMS, FAMILY_HINT),
    )
    values = {"run": run, "view": view, "kinds": kinds, "marks": view.MARKS}
    return html_file.render_template(
        "zoo/page.html.j2",
        values,
        [f"SGLang {run.release}", *run.toggles, f"virtual {run.card}"],
        [run.machine.get("unfix", "")],
        styles=STYLES,
    )
