"""Two texts of a module as edits: what the differences of Python and of C++ have in common.

For each difference the candidates grow, from the code that differs to the code around it. The first
pair of forms in which each form matches its own text exactly once, and the other text not at all,
becomes the edit. An edit that contains an earlier one replaces it; two edits never cross.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from harness.core.errors import UnfixError
from harness.core.source_scopes import ModuleSource
from harness.fixes.adopt.anchors import LeftOutChange
from harness.fixes.forms import parse_form
from harness.fixes.registry.schema import ToggleEdit
from harness.fixes.registry.toggle_reader import find_edit_problem

MAX_NEIGHBOURS = 3  # statements on each side of a difference
MAX_FORM_LINES = 40  # lines: any change in a longer form would make the toggle stale
IMPORT_ONLY = "an import: it stays, and does nothing"
NEW_CODE = "new code: it stays, uncalled"
MESSAGE_ONLY = "words for a reader"

DifferenceT = TypeVar("DifferenceT")
RunT = TypeVar("RunT")  # neighbouring statements of one text


@dataclass(frozen=True, slots=True)
class EditSpan:
    """One edit, and its span in the fixed text."""

    edit: ToggleEdit
    start: int
    end: int

    def is_inside(self, start: int, end: int) -> bool:
        return start <= self.start and self.end <= end

    def crosses(self, start: int, end: int) -> bool:
        """Return whether it shares code with a span and has code outside of it."""
        return self.start < end and start < self.end and not self.is_inside(start, end)


class TextDiff(Generic[DifferenceT, RunT]):
    """The differences of two texts of a module, and the edits that describe them."""

    module: str
    fixed: Any  # the sources of the two texts, in the language of the module
    buggy: Any
    differences: list[DifferenceT]

    # By language

    def describe(self, difference: DifferenceT) -> str:
        """Return the module, the definition and the first line of a difference."""
        raise NotImplementedError

    def explain_inert(self, difference: DifferenceT) -> str:
        """Return why a difference has no effect by itself; '' if it may have one."""
        raise NotImplementedError

    def iterate_candidates(self, difference: DifferenceT) -> Iterator[tuple[RunT, RunT]]:
        """Yield what forms may cover in the fixed and the buggy text, small runs first."""
        raise NotImplementedError

    def locate_run(self, source: Any, run: RunT) -> tuple[int, int]:
        """Return the span of a run in the text of its source."""
        raise NotImplementedError

    def iterate_forms(self, fixed: RunT, buggy: RunT) -> Iterator[tuple[str, str, str]]:
        """Yield the name of the definition around two runs, and both runs as patterns."""
        raise NotImplementedError

    # For both languages

    def drop_inert_differences(self) -> list[LeftOutChange]:
        """Drop imports, new definitions and messages, which have no effect by themselves.

        If nothing else remains, the new code is the fix.
        """
        reasons = [self.explain_inert(difference) for difference in self.differences]
        if all(reasons):
            reasons = ["" if reason == NEW_CODE else reason for reason in reasons]
        explained = list(zip(self.differences, reasons, strict=True))
        self.differences = [difference for difference, reason in explained if not reason]
        return [
            LeftOutChange(self.describe(difference), reason)
            for difference, reason in explained
            if reason
        ]

    def build_edits(self) -> tuple[list[EditSpan], list[DifferenceT]]:
        """Return the edits in the order of the text, and the differences that no edit describes."""
        spans: list[EditSpan] = []
        unresolved: list[DifferenceT] = []
        for difference in self.differences:
            if self.is_covered(difference, spans):
                continue
            found = self._find_edit(difference, spans)
            if found is None:
                unresolved.append(difference)
            else:
                spans = [span for span in spans if not span.is_inside(found.start, found.end)]
                spans.append(found)
        return spans, unresolved

    def is_covered(self, difference: DifferenceT, edit_spans: Sequence[EditSpan]) -> bool:
        """Return whether an edit of an earlier difference describes this one, too."""
        return False

    def _find_edit(
        self, difference: DifferenceT, edit_spans: Sequence[EditSpan]
    ) -> EditSpan | None:
        for fixed, buggy in self.iterate_candidates(difference):
            start, end = self.locate_run(self.fixed, fixed)
            if any(span.crosses(start, end) for span in edit_spans):
                continue
            starts = start, self.locate_run(self.buggy, buggy)[0]
            for name, *forms in self.iterate_forms(fixed, buggy):
                if max(form.count("\n") for form in forms) >= MAX_FORM_LINES:
                    continue
                target = f"{self.module}:{name}" if name else self.module
                edit = ToggleEdit(fixed=forms[0], buggy=forms[1], target=target)
                if is_distinguishing(edit, self.fixed, self.buggy, name, starts):
                    return EditSpan(edit, start, end)
        return None


def is_distinguishing(
    edit: ToggleEdit,
    fixed: ModuleSource,
    buggy: ModuleSource,
    name: str,
    starts: tuple[int, int],
) -> bool:
    """Return whether the edit is valid, and each form matches once in its own text only.

    `starts` are the places of the forms in the fixed and in the buggy text.
    """
    try:
        if find_edit_problem(edit, fixed.module):
            return False
        places = {
            (text, side): [
                match.start
                for scope in source.find_scopes(name)
                for match in parse_form(side, source.module).find(scope, source.text)
            ]
            for text, source in (("fixed", fixed), ("buggy", buggy))
            for side in (edit.fixed, edit.buggy)
        }
    except UnfixError:  # not a valid pattern
        return False
    return (
        places["fixed", edit.fixed] == [starts[0]]
        and places["buggy", edit.buggy] == [starts[1]]
        and not places["fixed", edit.buggy]
        and not places["buggy", edit.fixed]
    )
