"""An evaluation as one HTML file: the verdict, its tables and charts, and answers side by side."""

from __future__ import annotations

from harness.store.eval.values import Evaluation
from reports.eval import answer_differences as eval_items
from reports.eval import charts, view
from reports.shared import formatting, html_file

STYLES = ("shared/page.css", "shared/runs.css", "shared/bars.css")
MAX_PROBLEMS = 12


def render_page(evaluation: Evaluation) -> str:
    seen = view.make_view(evaluation)
    differing = [pairing for pairing in seen.comparisons if pairing.comparison.differences]
    items = eval_items.choose_items(evaluation, [pairing.comparison for pairing in differing])
    values = {
        "seen": seen,
        "evaluation": evaluation,
        "accuracy": charts.make_accuracy_bars(seen),
        "divergences": charts.make_divergence_chart(seen),
        "matrix": charts.make_fault_matrix(seen),
        "legend": [mark for mark in view.FAULT_MARKS if any(r.mark is mark for r in seen.faults)],
        "differing": list(zip(differing, items, strict=True)),
        "problems": MAX_PROBLEMS,
    }
    return html_file.render_template(
        "eval/page.html.j2", values, styles=STYLES, filters={"short": _shorten_line}
    )


def _shorten_line(text: str, max_length: int = formatting.MAX_NAME_LENGTH) -> str:
    return formatting.to_single_line(text, max_length)
