"""An evaluation as one HTML file: the verdict, its tables and charts, and answers side by side."""

from __future__ import annotations

from harness.store.eval.values import Evaluation
from reports.eval import answer_differences, charts, view
from reports.shared import html_file

STYLES = ("shared/runs.css", "shared/bars.css")
MAX_PROBLEMS = 12


def render_page(evaluation: Evaluation) -> str:
    eval_view = view.make_view(evaluation)
    differing = [row for row in eval_view.comparisons if row.comparison.differences]
    comparisons = [row.comparison for row in differing]
    items = answer_differences.choose_items(evaluation, comparisons)
    fault_marks = {row.mark for row in eval_view.faults}
    values = {
        "report": eval_view,
        "evaluation": evaluation,
        "accuracy": charts.make_accuracy_bars(eval_view),
        "divergences": charts.make_divergence_chart(eval_view),
        "matrix": charts.make_fault_matrix(eval_view),
        "legend": [mark for mark in view.FAULT_MARKS if mark in fault_marks],
        "differing": list(zip(differing, items, strict=True)),
        "problems": MAX_PROBLEMS,
    }
    return html_file.render_template(
        "eval/page.html.j2",
        values,
        [evaluation.name, *(served.release for served in evaluation.served), evaluation.device],
        [evaluation.machine.get("unfix", "")],
        styles=STYLES,
    )
