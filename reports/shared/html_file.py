"""A page in one HTML file, with its style and its script inside and no requests.

Pages extend `shared/base.html.j2` and use the macros of `shared/macros.html.j2`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

from harness.core.wording import format_duration
from reports.shared import formatting
from reports.shared.marks import ReportMark

REPORTS_FOLDER = Path(__file__).parent.parent
BASE_STYLES = ("shared/page.css", "shared/tables.css")  # of every page
BASE_SCRIPT = "shared/theme.js"
FILTERS: dict[str, Callable[..., Any]] = {
    "shell": shlex.join,
    "visible": formatting.make_visible,
    "duration": format_duration,
    "when": formatting.format_time,
    "short": formatting.to_single_line,
    "cut": formatting.truncate_start,
    "from_package": formatting.shorten_path,
}


def render_template(
    template: str,
    values: Mapping[str, Any],
    tested: Iterable[str],
    commits: Iterable[str],
    *,
    styles: Iterable[str] = (),
    scripts: Iterable[str] = (),
) -> str:
    """Render a template with these values; half a surrogate pair is shown as its escape.

    The head of the page names what was tested, and the commits of unfix that tested it, as
    `machine.describe_commit` names them; of each what is known, once.
    """
    style, body = _join_files((*BASE_STYLES, *styles)), _join_files((*scripts, BASE_SCRIPT))
    script = f'(() => {{\n"use strict";\n{body}}})();\n'
    jinja = make_environment()
    # Globals, unlike the values of one rendering, reach the macros of an imported file.
    jinja.globals |= {
        "style": Markup(style),
        "script": Markup(script),
        "policy": build_content_policy(style, script),
        "link_source": formatting.link_source,
    }
    page = jinja.get_template(template).render(
        values,
        tested=" · ".join(dict.fromkeys(filter(None, tested))),
        commits=list(dict.fromkeys(filter(None, commits))),
    )
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def make_environment() -> Environment:
    """Make an environment for one page; all that a process makes compile a template once."""
    jinja = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        loader=FileSystemLoader(REPORTS_FOLDER),
        bytecode_cache=_COMPILED_TEMPLATES,
    )
    jinja.filters |= FILTERS
    return jinja


class CompiledTemplates(BytecodeCache):
    """The compiled templates of this process; Jinja compares their sources."""

    def __init__(self) -> None:
        self._codes: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if code := self._codes.get(bucket.key):
            bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key] = bucket.bytecode_to_string()


_COMPILED_TEMPLATES = CompiledTemplates()


def _join_files(names: Iterable[str]) -> str:
    return "".join((REPORTS_FOLDER / name).read_text(encoding="utf-8") for name in names)


def build_content_policy(style: str, script: str) -> str:
    """Build a policy that allows only the page's own style and script, and no requests."""
    return (
        f"default-src 'none'; style-src {hash_source(style)}; script-src {hash_source(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def embed_json(value: Any) -> Markup:
    """Embed JSON that cannot end the script element around it."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def marks_to_json(marks: Iterable[ReportMark]) -> dict[str, dict[str, Any]]:
    """Convert marks to JSON by their words, as `shared/dom.js` reads them."""
    return {
        mark.word: {
            "glyph": mark.glyph,
            "tone": mark.tone,
            "meaning": mark.meaning,
            "good": mark.good,
        }
        for mark in marks
    }
