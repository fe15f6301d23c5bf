"""Where the statements of a kernel lie in its text, in the order in which the parser reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SKIPPED = re.compile(r"\s+|//[^\n]*|\.(?:loc|file)\s[^\n]*")
_LABEL = re.compile(r"[\w$%]+\s*:(?!:)")


@dataclass(frozen=True, slots=True)
class StatementSpan:
    """The text of one statement, its semicolon included; `depth` counts the scopes around it."""

    start: int
    end: int
    depth: int


def iterate_statement_spans(body: str) -> Iterator[StatementSpan]:
    """Yield the statements of a body, which are its instructions; directives are none."""
    position, depth = 0, 0
    while position < len(body):
        skipped = _SKIPPED.match(body, position) or _LABEL.match(body, position)
        if skipped is not None:
            position = skipped.end()
            continue
        if body[position] in "{}":
            depth += 1 if body[position] == "{" else -1
            position += 1
            continue
        end = body.find(";", position)
        if end < 0:
            return
        if body[position] not in ".;":
            yield StatementSpan(position, end + 1, depth)
        position = end + 1
