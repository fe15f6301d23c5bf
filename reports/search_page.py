"""A search as one HTML file: the verdict, the culprits, and a picture of how they were found."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from harness.store.searches import Search
from reports import search_view, texts
from reports.page import STYLES, TEMPLATES, cut, digest

MOST = 400  # rows; a flaky search joins its runs anyway


def write(search: Search, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(html(search), encoding="utf-8")


def html(search: Search) -> str:
    style = "".join(
        (TEMPLATES / name).read_text(encoding="utf-8") for name in (*STYLES, "search.css")
    )
    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    jinja.filters |= {
        "visible": texts.visible,
        "duration": texts.duration,
        "when": texts.when,
        "cut": cut,
    }
    template = jinja.from_string((TEMPLATES / "search.html.j2").read_text(encoding="utf-8"))
    page = template.render(
        seen=search_view.make(search),
        search=search,
        glyphs=search_view.GLYPHS,
        tones=search_view.TONES,
        why=search_view.WHY,
        most=MOST,
        style=Markup(style),
        policy=f"default-src 'none'; style-src {digest(style)}; "
        "base-uri 'none'; form-action 'none'",
    )
    return page.encode("utf-8", "backslashreplace").decode("utf-8")
