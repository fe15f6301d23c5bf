"""C++ in the lines of a merge: statements, however they are laid out, as tokens and as patterns.

A line ends behind `;`, `{` or `}` outside of round and square brackets, or is a preprocessor line.
Example: `for (int i = 0; i < n; ++i) { f(i); }` has three: up to `{`, up to `;`, and `}`.
"""

from __future__ import annotations

import re

from harness.core.cpp_scopes import CppScope, CppSource
from harness.core.cpp_tokens import CppText
from harness.fixes.adopt.code_tokens import NEWLINE, CodeToken
from harness.fixes.patterns import get_indent, remove_indent

LineSpan = tuple[int, int]  # token indices; the second is exclusive

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BLANK_LINES = re.compile(r"\n\s*(?=\n)")
_KEYWORDS = frozenset(
    "alignas auto bool break case char class const constexpr continue default do double else enum "
    "explicit extern false float for goto if inline int long namespace new nullptr operator return "
    "short signed sizeof static static_cast struct switch template this true typedef typename "
    "union unsigned using void volatile while".split()
)


def split_lines(code: CppText) -> list[LineSpan]:
    """Return every line of a source."""
    lines: list[LineSpan] = []
    first = index = 0
    while index < len(code.tokens):
        token = code.tokens[index]
        if token.kind == "directive":
            if first < index:
                lines.append((first, index))
            lines.append((index, index + 1))
            first = index + 1
        elif token.text in ("(", "[") and index in code.partners:
            index = code.partners[index]
        elif token.text in ("{", "}", ";"):
            lines.append((first, index + 1))
            first = index + 1
        index += 1
    if first < len(code.tokens):
        lines.append((first, len(code.tokens)))
    return lines


def tokenize_scope(scope: CppScope, text: str) -> list[CodeToken]:
    """Return the tokens of a definition or a file, with the end of each line."""
    code = scope.code
    ends = {end for _, end in split_lines(code)}
    found: list[CodeToken] = []
    for index in range(scope.first, scope.end):
        token = code.tokens[index]
        gap = text[code.tokens[index - 1].end : token.start] if index > scope.first else ""
        is_name = token.kind == "word" and token.text not in _KEYWORDS
        found.append(CodeToken(text[token.start : token.end], gap, is_name))
        if index + 1 in ends:
            found.append(CodeToken(NEWLINE))
    return found


def render_tokens(tokens: list[CodeToken]) -> str:
    return "".join(
        f"{token.leading_space}{token.text}" for token in tokens if token.text != NEWLINE
    )


def locate_scope(scope: CppScope) -> tuple[int, int]:
    """Return the span of a scope in its text."""
    if scope.first == scope.end:
        return 0, 0
    return scope.tokens[scope.first].start, scope.tokens[scope.end - 1].end


def normalize_text(text: str) -> str:
    """Return a text without layout and comments."""
    return " ".join(token.text for token in CppText(text).tokens)


def render_pattern(source: CppSource, span: LineSpan) -> str:
    """Render a run of tokens as a pattern: unindented, without comments and blank lines."""
    tokens = source.code.tokens
    parts = [source.text[tokens[span[0]].start : tokens[span[0]].end]]
    for index in range(span[0] + 1, span[1]):
        gap = source.text[tokens[index - 1].end : tokens[index].start]
        if "/" in gap:
            gap = re.sub(r"[ \t]+(?=\n)", "", _COMMENT.sub("", gap))
        parts.append(_BLANK_LINES.sub("", gap))
        parts.append(source.text[tokens[index].start : tokens[index].end])
    return remove_indent("".join(parts), get_indent(source.text, tokens[span[0]].start))
