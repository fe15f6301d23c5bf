"""Converts code to tokens and back; tokens include line ends and indentation, no comments."""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass

NEWLINE, INDENT, DEDENT = "<line>", "<in>", "<out>"
OPEN, CLOSE = ("(", "[", "{"), (")", "]", "}")


class PortError(Exception):
    """An edit cannot be ported; the message says why."""


@dataclass(frozen=True, slots=True)
class CodeToken:
    text: str
    leading_space: str = ""  # white space before the token
    is_name: bool = False


def tokenize_code(text: str, indent: str) -> list[CodeToken]:
    """Tokenize a definition; `indent` is the indentation of its first line."""
    head = "if 1:\n" if indent else ""
    source = f"{head}{indent}{text}\n"
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: list[CodeToken] = []
    end, begun, deep = 0, 0, 0
    skip = 4 if indent else 0  # `if 1 : <line>` and its indent
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            first = starts[token.start[0] - 1] + token.start[1]
            last = starts[token.end[0] - 1] + token.end[1]
            kind = tokenize.tok_name[token.type]
            if kind in ("FSTRING_START", "TSTRING_START"):
                begun = first if deep == 0 else begun
                deep += 1
                continue
            if kind in ("FSTRING_END", "TSTRING_END"):
                deep -= 1
                first = begun
            if deep or kind in ("COMMENT", "NL", "ENDMARKER"):
                continue
            mark = {"NEWLINE": NEWLINE, "INDENT": INDENT, "DEDENT": DEDENT}.get(kind)
            if mark:
                found.append(CodeToken(mark))
            else:
                gap = source[end:first] if end <= first else ""
                gap = "\n".join(part.split("#")[0].rstrip() if "#" in part else part
                                for part in gap.split("\n"))  # fmt: skip
                own = found and found[-1].text not in (NEWLINE, INDENT, DEDENT)
                found.append(CodeToken(source[first:last], gap if own else "", kind == "NAME"))
            end = last
    except (tokenize.TokenError, SyntaxError, IndexError) as error:
        raise PortError(f"it is not read as Python: {error}") from error
    if indent:
        found = found[skip + 1 : -1]
    while found and found[-1].text == DEDENT:
        found.pop()
    return _drop_trailing_commas(found)


def _drop_trailing_commas(source_tokens: list[CodeToken]) -> list[CodeToken]:
    """Drop the comma that ends a list, which a formatter adds and removes; a tuple keeps it."""
    result: list[CodeToken] = []
    tuples: list[bool] = []
    for token in source_tokens:
        if token.text in OPEN:
            before = result[-1] if result else CodeToken("")
            called = (before.is_name and not keyword.iskeyword(before.text)) or before.text in CLOSE
            tuples.append(token.text == "(" and not called)
        elif token.text in CLOSE:
            spare = bool(tuples) and not tuples.pop()
            if spare and result[-1].text == "," and result[-2].text not in OPEN:
                result.pop()
        result.append(token)
    return result


def render_tokens(source_tokens: Sequence[CodeToken], indent: str) -> str:
    """Render tokens as code; all lines but the first are indented."""
    parts: list[str] = []
    depth, fresh, inside = 0, True, 0
    for token in source_tokens:
        if token.text == NEWLINE:
            parts.append("\n")
            fresh = True
        elif token.text in (INDENT, DEDENT):
            depth += 1 if token.text == INDENT else -1
        else:
            if fresh:
                parts.append(indent + "    " * depth if parts else "")
            else:
                bare = (
                    not inside and "\n" in token.leading_space and "\\" not in token.leading_space
                )
                parts.append(" " if bare else token.leading_space)
            parts.append(token.text)
            inside += (token.text in OPEN) - (token.text in CLOSE)
            fresh = False
    return "".join(parts).rstrip("\n")


def split_lines(source_tokens: Sequence[CodeToken]) -> list[tuple[int, int]]:
    """Return the spans of the logical lines, with their indentation tokens."""
    result, begun = [], 0
    for index, token in enumerate(source_tokens):
        if token.text == NEWLINE:
            result.append((begun, index + 1))
            begun = index + 1
    if begun < len(source_tokens):
        result.append((begun, len(source_tokens)))
    return result


def to_texts(run: Sequence[CodeToken]) -> tuple[str, ...]:
    return tuple(token.text for token in run)
