"""An evaluation as one HTML file: the verdict, its tables and charts, and answers side by side."""

from __future__ import annotations

from harness.store.eval.values import Evaluation
from reports.eval import charts, view
from reports.eval import items as eval_items
from reports.shared import one_file, texts

STYLES = ("shared/page.css", "shared/runs.css", "shared/bars.css")
PROBLEMS = 12


def html(evaluation: Evaluation) -> str:
    seen = view.make(evaluation)
    differing = [pairing for pairing in seen.pairings if pairing.compared.differences]
    items = eval_items.choose(evaluation, [pairing.compared for pairing in differing])
    values = {
        "seen": seen,
        "evaluation": evaluation,
        "accuracy": charts.accuracy(seen),
        "divergences": charts.divergences(seen),
        "matrix": charts.matrix(seen),
        "legend": [mark for mark in view.FAULTS if any(r.mark is mark for r in seen.faults)],
        "differing": list(zip(differing, items, strict=True)),
        "problems": PROBLEMS,
    }
    return one_file.rendered("eval/page.html.j2", values, styles=STYLES, filters={"short": _short})


def _short(text: str, most: int = texts.NAME) -> str:
    return texts.line(text, most)
