"""Removes renames of local names from the difference between two texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.core.source_scopes import ModuleSource
from harness.fixes.adopt import token_merge
from harness.fixes.adopt.code_tokens import (
    CLOSE,
    NEWLINE,
    OPEN,
    CodeToken,
    PortError,
    render_tokens,
    tokenize_code,
)
from harness.fixes.patterns import get_indent, get_span


def undo_renames(fixed: str, buggy: str) -> tuple[str, list[str]]:
    """Return the buggy text with the fixed text's names, and a description of each rename."""
    descriptions: list[str] = []
    for name in ModuleSource("", "", buggy).iterate_definition_names():
        ours, theirs = (ModuleSource("", "", text) for text in (fixed, buggy))
        scopes = ours.find_scopes(name), theirs.find_scopes(name)
        if [len(found) for found in scopes] != [1, 1] or scopes[0][0].text() == scopes[1][0].text():
            continue
        start, end = get_span(scopes[1][0])
        indent = get_indent(buggy, start)
        try:
            after = tokenize_code(scopes[0][0].text(), get_indent(fixed, get_span(scopes[0][0])[0]))
            before = tokenize_code(buggy[start:end], indent)
        except PortError:
            continue
        names = dict(_find_renames(before, after))
        if names:
            places = _find_plain_names(before)
            renamed_tokens = [
                replace(token, text=names.get(token.text, token.text)) if at in places else token
                for at, token in enumerate(before)
            ]
            buggy = buggy[:start] + render_tokens(renamed_tokens, indent) + buggy[end:]
            descriptions += [f"{name}: {old} is {new}" for old, new in names.items()]
    return buggy, descriptions


def _find_renames(
    before: Sequence[CodeToken], after: Sequence[CodeToken]
) -> Iterator[tuple[str, str]]:
    """Yield names that are another name everywhere in the other text, and bound there."""
    counterparts = token_merge.align_tokens(before, after).counterparts
    mine, its = ({text[at].text for at in _find_plain_names(text)} for text in (before, after))
    for old in sorted(mine - its):
        places = [at for at in _find_plain_names(before) if before[at].text == old]
        new = {after[to].text for at in places if (to := counterparts[at]) is not None}
        bound = any(_is_binding(before, at) and counterparts[at] is not None for at in places)
        if len(new) == 1 and bound and new <= its - mine:
            yield old, new.pop()


def _find_plain_names(code: Sequence[CodeToken]) -> set[int]:
    """Find the indices of names that are not attributes."""
    return {
        at
        for at, token in enumerate(code)
        if token.is_name and (not at or code[at - 1].text != ".")
    }


def _is_binding(code: Sequence[CodeToken], index: int) -> bool:
    """Return whether the token binds a name: an assignment or a parameter."""
    deep = 0
    for position in range(index, -1, -1):
        deep += (code[position].text in CLOSE) - (code[position].text in OPEN)
        if deep < 0:
            return position >= 2 and code[position - 2].text == "def"
        if code[position].text == NEWLINE:
            break
    return code[index + 1 : index + 2] != [] and code[index + 1].text in ("=", ",", ":", "in")
