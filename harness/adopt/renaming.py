"""Names that a fix only calls otherwise: they are taken out of the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.adopt import merging
from harness.adopt.tokens import CLOSE, LINE, OPEN, Lost, Token, text_of, tokens
from harness.syntax.patterns import indent_at, span
from harness.syntax.scopes import ModuleSource


def unrenamed(fixed: str, buggy: str) -> tuple[str, list[str]]:
    """The buggy text under the names of the fixed one, and which names these are."""
    said: list[str] = []
    for name in ModuleSource("", "", buggy).definition_names():
        ours, theirs = (ModuleSource("", "", text) for text in (fixed, buggy))
        scopes = ours.scopes(name), theirs.scopes(name)
        if [len(found) for found in scopes] != [1, 1] or scopes[0][0].text() == scopes[1][0].text():
            continue
        start, end = span(scopes[1][0])
        indent = indent_at(buggy, start)
        try:
            after = tokens(scopes[0][0].text(), indent_at(fixed, span(scopes[0][0])[0]))
            before = tokens(buggy[start:end], indent)
        except Lost:
            continue
        names = dict(_renamed(before, after))
        if names:
            places = _own(before)
            own = [
                replace(one, text=names.get(one.text, one.text)) if at in places else one
                for at, one in enumerate(before)
            ]
            buggy = buggy[:start] + text_of(own, indent) + buggy[end:]
            said += [f"{name}: {old} is {new}" for old, new in names.items()]
    return buggy, said


def _renamed(before: Sequence[Token], after: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """Names of the one that are other names in the other wherever they stand, where bound too."""
    onto = merging.align(before, after).to
    mine, its = ({text[at].text for at in _own(text)} for text in (before, after))
    for old in sorted(mine - its):
        places = [at for at in _own(before) if before[at].text == old]
        new = {after[to].text for at in places if (to := onto[at]) is not None}
        bound = any(_binds(before, at) and onto[at] is not None for at in places)
        if len(new) == 1 and bound and new <= its - mine:
            yield old, new.pop()


def _own(text: Sequence[Token]) -> set[int]:
    """Where names stand that are no attribute of something."""
    return {at for at, one in enumerate(text) if one.name and (not at or text[at - 1].text != ".")}


def _binds(text: Sequence[Token], at: int) -> bool:
    """Whether a name is assigned there, or is a parameter."""
    deep = 0
    for here in range(at, -1, -1):
        deep += (text[here].text in CLOSE) - (text[here].text in OPEN)
        if deep < 0:
            return here >= 2 and text[here - 2].text == "def"
        if text[here].text == LINE:
            break
    return text[at + 1 : at + 2] != [] and text[at + 1].text in ("=", ",", ":", "in")
