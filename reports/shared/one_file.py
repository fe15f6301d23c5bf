"""An HTML page that needs nothing else: its style and its script inside, and nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from reports.shared import texts

REPORTS = Path(__file__).parent.parent
FILTERS: dict[str, Callable[..., Any]] = {
    "visible": texts.visible,
    "duration": texts.duration,
    "when": texts.when,
}


def rendered(
    template: str,
    values: Mapping[str, Any],
    *,
    styles: Iterable[str],
    scripts: Iterable[str] = (),
    filters: Mapping[str, Callable[..., Any]] | None = None,
) -> str:
    """A template with these values; what no encoding can hold is shown as its escape."""
    style, body = _together(styles), _together(scripts)
    script = f'(() => {{\n"use strict";\n{body}}})();\n' if body else ""
    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    jinja.filters |= FILTERS | dict(filters or {})
    page = jinja.from_string(_together([template])).render(
        values, style=Markup(style), script=Markup(script), policy=policy(style, script)
    )
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def _together(names: Iterable[str]) -> str:
    return "".join((REPORTS / name).read_text(encoding="utf-8") for name in names)


def policy(style: str, script: str) -> str:
    """Only this page's own style and script may do anything; nothing may be fetched."""
    scripts = f"script-src {digest(script)}; " if script else ""
    return (
        f"default-src 'none'; style-src {digest(style)}; {scripts}"
        "base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def data(value: Any) -> Markup:
    """JSON that cannot end the script element it lies in."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
