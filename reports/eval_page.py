"""An evaluation as one HTML file: the verdict, its tables and charts, and answers side by side."""

from __future__ import annotations

from pathlib import Path

from harness.store.evaluations import Evaluation
from reports import eval_charts, eval_items, eval_view, one_file

STYLES = ("page.css", "search.css", "eval.css")
PROBLEMS = 12


def write(evaluation: Evaluation, file: Path) -> None:
    one_file.write(html(evaluation), file)


def html(evaluation: Evaluation) -> str:
    seen = eval_view.make(evaluation)
    differing = [pairing for pairing in seen.pairings if pairing.compared.differences]
    items = eval_items.choose(evaluation, [pairing.compared for pairing in differing])
    values = {
        "seen": seen,
        "evaluation": evaluation,
        "accuracy": eval_charts.accuracy(seen),
        "divergences": eval_charts.divergences(seen),
        "matrix": eval_charts.matrix(seen),
        "legend": [mark for mark in eval_view.FAULTS if any(r.mark is mark for r in seen.faults)],
        "differing": list(zip(differing, items, strict=True)),
        "problems": PROBLEMS,
    }
    return one_file.rendered("eval.html.j2", values, styles=STYLES, filters={"short": _short})


def _short(text: str, most: int = eval_view.NAME) -> str:
    return eval_view.line(text, most)
