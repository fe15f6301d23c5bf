"""A mutation run as one HTML file: the scores, and the code with its faults in the margin."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from harness.store.mutations import Mutation
from reports import mutate_view, texts
from reports.page import STYLES, TEMPLATES, cut, digest


def write(run: Mutation, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(html(run), encoding="utf-8")


def html(run: Mutation) -> str:
    style = "".join(
        (TEMPLATES / name).read_text(encoding="utf-8") for name in (*STYLES, "mutate.css")
    )
    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    jinja.filters |= {
        "visible": texts.visible,
        "duration": texts.duration,
        "when": texts.when,
        "cut": cut,
        "mark": mutate_view.mark,
        "why": mutate_view.why,
        "change": mutate_view.change,
        "percent": mutate_view.percent,
    }
    template = jinja.from_string((TEMPLATES / "mutate.html.j2").read_text(encoding="utf-8"))
    page = template.render(
        seen=mutate_view.make(run),
        run=run,
        view=mutate_view,
        marks=mutate_view.MARKS,
        style=Markup(style),
        policy=f"default-src 'none'; style-src {digest(style)}; "
        "base-uri 'none'; form-action 'none'",
    )
    return page.encode("utf-8", "backslashreplace").decode("utf-8")
