"""Where statements and operands lie in a text, in the order in which the parser reads them."""

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


def split_operands(text: str) -> list[str]:
    """Split at commas outside of brackets: `{a, b}, [c+4]` becomes `{a, b}` and `[c+4]`."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "[{(") - (letter in ")}]")
        if letter == "," and not depth:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    if current.strip():
        parts.append(current.strip())
    return parts
