"""Converts two texts of a C++ source into edits: the smallest runs of statements that tell them.

As for Python (`module_diff`), candidates grow: the statements that differ, then up to three
neighbours before, behind and on both sides. The first pair in which each form matches its own text
once and the other text not at all becomes the edit.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.core.cpp_scopes import CppSource
from harness.fixes.adopt.anchors import LeftOutChange
from harness.fixes.adopt.cpp_lines import LineSpan, render_pattern, split_lines
from harness.fixes.adopt.module_diff import (
    MAX_FORM_LINES,
    MAX_NEIGHBOURS,
    EditSpan,
    is_distinguishing,
)
from harness.fixes.registry.schema import ToggleEdit

NEW_CODE = "new code: it stays, uncalled"


@dataclass(frozen=True, slots=True)
class CppDifference:
    """Lines in which the two texts differ, as ranges of their numbers; one may be empty."""

    fixed: LineSpan
    buggy: LineSpan


class CppModuleDiff:
    """The differences of two texts of a source, and the edits that describe them."""

    def __init__(self, module: str, fixed: str, buggy: str) -> None:
        self.module = module
        self.fixed = CppSource(module, module, fixed)
        self.buggy = CppSource(module, module, buggy)
        self._lines = split_lines(self.fixed.code), split_lines(self.buggy.code)
        fixed_texts, buggy_texts = (
            [" ".join(token.text for token in source.code.tokens[a:b]) for a, b in lines]
            for source, lines in zip((self.fixed, self.buggy), self._lines, strict=True)
        )
        compared = difflib.SequenceMatcher(
            None, fixed_texts, buggy_texts, autojunk=False
        ).get_opcodes()
        self.differences = [
            CppDifference((a, b), (c, d)) for kind, a, b, c, d in compared if kind != "equal"
        ]

    def drop_inert_differences(self) -> list[LeftOutChange]:
        """Drop includes, new definitions and messages, which have no effect by themselves."""
        dropped = {}
        for place in self.differences:
            if reason := self._explain_inert(place):
                dropped[place] = LeftOutChange(self.describe(place), reason)
        if len(dropped) == len(self.differences):  # new code is a fix if nothing else is
            dropped = {place: why for place, why in dropped.items() if why.reason != NEW_CODE}
        self.differences = [place for place in self.differences if place not in dropped]
        return list(dropped.values())

    def _explain_inert(self, place: CppDifference) -> str:
        fixed, buggy = self._get_tokens(place)
        if all(token.startswith(("#include", "# include")) for token in (*fixed, *buggy)):
            return "an include: it stays, and does nothing"
        if [t for t in fixed if t[:1] != '"'] == [t for t in buggy if t[:1] != '"']:
            return "words for a reader"
        first, end = self._to_tokens(0, place.fixed)
        covered = [
            one for one in self.fixed.code.definitions if first <= one.first and one.end <= end
        ]
        if not buggy and covered and covered[0].first == first and covered[-1].end == end:
            return NEW_CODE
        return ""

    def _get_tokens(self, place: CppDifference) -> tuple[list[str], list[str]]:
        one, other = (
            [source.code.tokens[n].text for n in range(*self._to_tokens(side, lines))]
            for side, source, lines in ((0, self.fixed, place.fixed), (1, self.buggy, place.buggy))
        )
        return one, other

    def _to_tokens(self, side: int, lines: LineSpan) -> LineSpan:
        every = self._lines[side]
        if lines[0] == lines[1]:
            place = every[lines[0]][0] if lines[0] < len(every) else every[-1][1] if every else 0
            return place, place
        return every[lines[0]][0], every[lines[1] - 1][1]

    def describe(self, place: CppDifference) -> str:
        side, source = (0, self.fixed) if place.fixed[0] < place.fixed[1] else (1, self.buggy)
        span = self._to_tokens(side, place.fixed if side == 0 else place.buggy)
        name = _find_qualname(source, span)
        first = " ".join(render_pattern(source, span).split("\n")[0].split())
        return f"{self.module}:{name or '(file)'}: {first[:60]}"

    def build_edits(self) -> tuple[list[EditSpan], list[CppDifference]]:
        """Return the edits in the order of the text, and the differences that no edit describes."""
        spans: list[EditSpan] = []
        unresolved: list[CppDifference] = []
        for place in self.differences:
            found = self._find_edit(place, spans)
            if found is None:
                unresolved.append(place)
            else:
                spans = [t for t in spans if not (found.start <= t.start and t.end <= found.end)]
                spans.append(found)
        return spans, unresolved

    def _find_edit(self, place: CppDifference, edit_spans: Sequence[EditSpan]) -> EditSpan | None:
        for fixed, buggy in self._iterate_candidates(place):
            tokens = self.fixed.code.tokens
            start, end = tokens[fixed[0]].start, tokens[fixed[1] - 1].end
            crossing = [t for t in edit_spans if t.start < end and start < t.end]
            if any(not (start <= t.start and t.end <= end) for t in crossing):
                continue
            name = _find_qualname(self.fixed, fixed)
            if name != _find_qualname(self.buggy, buggy):
                name = ""
            forms = render_pattern(self.fixed, fixed), render_pattern(self.buggy, buggy)
            if max(form.count("\n") for form in forms) >= MAX_FORM_LINES:
                continue
            target = f"{self.module}:{name}" if name else self.module
            edit = ToggleEdit(fixed=forms[0], buggy=forms[1], target=target)
            places = start, self.buggy.code.tokens[buggy[0]].start
            if is_distinguishing(edit, self.fixed, self.buggy, name, places):
                return EditSpan(edit, start, end)
        return None

    def _iterate_candidates(self, place: CppDifference) -> Iterator[tuple[LineSpan, LineSpan]]:
        (a, b), (c, d) = place.fixed, place.buggy
        counts = [len(lines) for lines in self._lines]
        for many in range(MAX_NEIGHBOURS + 1):
            before, behind = min(many, a, c), min(many, counts[0] - b, counts[1] - d)
            for up, down in dict.fromkeys([(before, 0), (0, behind), (before, behind)]):
                if a - up < b + down and c - up < d + down:
                    yield (
                        self._to_tokens(0, (a - up, b + down)),
                        self._to_tokens(1, (c - up, d + down)),
                    )


def _find_qualname(source: CppSource, span: LineSpan) -> str:
    """Return the innermost definition that contains a run of tokens, inside of its braces."""
    around = [
        one
        for one in source.code.definitions
        if one.first <= span[0] and span[1] <= one.end and (one.first, one.end) != span
    ]
    return max(around, key=lambda one: one.first).name if around else ""
