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

from reports.shared import formatting

REPORTS_FOLDER = Path(__file__).parent.parent
DEFAULT_FILTERS: dict[str, Callable[..., Any]] = {
    "visible": formatting.make_visible,
    "duration": formatting.format_duration,
    "when": formatting.format_time,
}


def render_template(
    template: str,
    values: Mapping[str, Any],
    *,
    styles: Iterable[str],
    scripts: Iterable[str] = (),
    filters: Mapping[str, Callable[..., Any]] | None = None,
) -> str:
    """A template with these values; what no encoding can hold is shown as its escape."""
    style, body = _join_files(styles), _join_files(scripts)
    script = f'(() => {{\n"use strict";\n{body}}})();\n' if body else ""
    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    jinja.filters |= DEFAULT_FILTERS | dict(filters or {})
    page = jinja.from_string(_join_files([template])).render(
        values,
        style=Markup(style),
        script=Markup(script),
        policy=build_content_policy(style, script),
    )
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def _join_files(names: Iterable[str]) -> str:
    return "".join((REPORTS_FOLDER / name).read_text(encoding="utf-8") for name in names)


def build_content_policy(style: str, script: str) -> str:
    """Only this page's own style and script may do anything; nothing may be fetched."""
    scripts = f"script-src {hash_source(script)}; " if script else ""
    return (
        f"default-src 'none'; style-src {hash_source(style)}; {scripts}"
        "base-uri 'none'; form-action 'none'"
    )


def hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def embed_json(value: Any) -> Markup:
    """JSON that cannot end the script element it lies in."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
