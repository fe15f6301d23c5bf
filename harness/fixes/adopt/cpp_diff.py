"""Converts two texts of a C++ source into edits: the smallest distinguishing runs of statements.

The candidates of a difference are the statements that differ, then these with up to three
neighbours before, behind and on both sides.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from harness.core.cpp_scopes import CppSource
from harness.fixes.adopt.cpp_lines import LineSpan, render_pattern, split_lines
from harness.fixes.adopt.text_diff import (
    IMPORT_ONLY,
    MAX_NEIGHBOURS,
    MESSAGE_ONLY,
    NEW_CODE,
    TextDiff,
)


@dataclass(frozen=True, slots=True)
class CppDifference:
    """Lines in which the two texts differ, as ranges of their numbers; one may be empty."""

    fixed: LineSpan
    buggy: LineSpan


class CppModuleDiff(TextDiff[CppDifference, LineSpan]):
    """The differences of two texts of a C++ source; a run is a range of tokens."""

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

    def explain_inert(self, difference: CppDifference) -> str:
        first, end = self._to_tokens(0, difference.fixed)
        buggy_first, buggy_end = self._to_tokens(1, difference.buggy)
        fixed = [token.text for token in self.fixed.code.tokens[first:end]]
        buggy = [token.text for token in self.buggy.code.tokens[buggy_first:buggy_end]]
        if all(token.startswith(("#include", "# include")) for token in (*fixed, *buggy)):
            return IMPORT_ONLY
        if [t for t in fixed if t[:1] != '"'] == [t for t in buggy if t[:1] != '"']:
            return MESSAGE_ONLY
        covered = [
            definition
            for definition in self.fixed.code.definitions
            if first <= definition.first and definition.end <= end
        ]
        if not buggy and covered and covered[0].first == first and covered[-1].end == end:
            return NEW_CODE
        return ""

    def _to_tokens(self, side: int, lines: LineSpan) -> LineSpan:
        every = self._lines[side]
        if lines[0] == lines[1]:
            index = every[lines[0]][0] if lines[0] < len(every) else every[-1][1] if every else 0
            return index, index
        return every[lines[0]][0], every[lines[1] - 1][1]

    def describe(self, difference: CppDifference) -> str:
        side, source = (1, self.buggy)
        if difference.fixed[0] < difference.fixed[1]:
            side, source = (0, self.fixed)
        span = self._to_tokens(side, difference.buggy if side else difference.fixed)
        name = _find_qualname(source, span)
        first_line = " ".join(render_pattern(source, span).split("\n")[0].split())
        return f"{self.module}:{name or '(file)'}: {first_line[:60]}"

    def locate_run(self, source: CppSource, run: LineSpan) -> tuple[int, int]:
        return source.code.tokens[run[0]].start, source.code.tokens[run[1] - 1].end

    def iterate_forms(self, fixed: LineSpan, buggy: LineSpan) -> Iterator[tuple[str, str, str]]:
        name = _find_qualname(self.fixed, fixed)
        if name != _find_qualname(self.buggy, buggy):
            name = ""
        yield name, render_pattern(self.fixed, fixed), render_pattern(self.buggy, buggy)

    def iterate_candidates(self, difference: CppDifference) -> Iterator[tuple[LineSpan, LineSpan]]:
        (a, b), (c, d) = difference.fixed, difference.buggy
        counts = [len(lines) for lines in self._lines]
        for neighbours in range(MAX_NEIGHBOURS + 1):
            before, after = min(neighbours, a, c), min(neighbours, counts[0] - b, counts[1] - d)
            for up, down in dict.fromkeys([(before, 0), (0, after), (before, after)]):
                if a - up < b + down and c - up < d + down:
                    yield (
                        self._to_tokens(0, (a - up, b + down)),
                        self._to_tokens(1, (c - up, d + down)),
                    )


def _find_qualname(source: CppSource, span: LineSpan) -> str:
    """Return the innermost definition that contains a run of tokens, inside of its braces."""
    containing = [
        definition
        for definition in source.code.definitions
        if definition.first <= span[0]
        and span[1] <= definition.end
        and (definition.first, definition.end) != span
    ]
    return max(containing, key=lambda definition: definition.first).name if containing else ""
