"""An evaluation as one HTML file: the verdict, its tables and charts, and answers side by side."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from harness.store.evaluations import Evaluation
from reports import eval_charts, eval_items, eval_view, texts
from reports.page import TEMPLATES, digest

STYLES = ("page.css", "search.css", "eval.css")
PROBLEMS = 12


def write(evaluation: Evaluation, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(html(evaluation), encoding="utf-8")


def html(evaluation: Evaluation) -> str:
    style = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in STYLES)
    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    jinja.filters |= {"visible": texts.visible, "duration": texts.duration, "short": _short}
    template = jinja.from_string((TEMPLATES / "eval.html.j2").read_text(encoding="utf-8"))
    seen = eval_view.make(evaluation)
    differing = [pairing for pairing in seen.pairings if pairing.compared.differences]
    items = eval_items.choose(evaluation, [pairing.compared for pairing in differing])
    page = template.render(
        seen=seen,
        evaluation=evaluation,
        accuracy=eval_charts.accuracy(seen),
        divergences=eval_charts.divergences(seen),
        matrix=eval_charts.matrix(seen),
        legend=[mark for mark in eval_view.FAULTS if any(r.mark is mark for r in seen.faults)],
        differing=list(zip(differing, items, strict=True)),
        problems=PROBLEMS,
        style=Markup(style),
        policy=f"default-src 'none'; style-src {digest(style)}; "
        "base-uri 'none'; form-action 'none'",
    )
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def _short(text: str, most: int = eval_view.NAME) -> str:
    return eval_view.line(text, most)
