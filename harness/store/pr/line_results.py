"""The changed lines of a review by function: what ran them, and what is known of each.

A line that holds code has one of three results: something that ran it is *worse* now, nothing that
ran it differs, or nothing ran it. An item that is known to run a line and did not fit into the
budget leaves the line *incomplete*.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ReviewResult(StrEnum):
    """What a review knows of a changed line, or of all of them; the worst first."""

    WORSE = "worse"
    INCOMPLETE = "incomplete"  # the budget ran out, or a part did not end
    NOT_RUN = "not run"
    SAME = "no difference"


class UnrunLine(msgspec.Struct):
    """A changed line that nothing ran."""

    line: int
    text: str
    is_removed: bool = False  # it is a line of the base


class ChangedFunction(msgspec.Struct):
    """The changed lines of a function, of the code outside of functions, or of another file."""

    module: str
    name: str  # '' outside of every function
    path: str  # in the checkout
    line: int  # the first that changed
    diff: list[str] = []  # the first lines that changed, as a diff
    changed: int = 0  # lines that hold code
    ran_by: list[str] = []  # "zoo gpt_oss", "suites/rows/test_rows.py::test_rows"
    unrun: list[UnrunLine] = []
    left_out: list[str] = []  # items that are known to run the function, and were not run
    nearest: str = ""  # what comes nearest to the lines that nothing ran, and what they need
    evidence: list[str] = []  # what is worse
    again: str = ""  # the command that shows it

    @property
    def result(self) -> ReviewResult:
        if self.evidence:
            return ReviewResult.WORSE
        if self.unrun:
            return ReviewResult.INCOMPLETE if self.left_out else ReviewResult.NOT_RUN
        return ReviewResult.SAME

    @property
    def title(self) -> str:
        return f"{self.path}:{self.line}{f' ({self.name})' if self.name else ''}"

    def list_problems(self) -> list[str]:
        """Return a sentence for each line that nothing ran."""
        rest = f"; left out: {', '.join(self.left_out[:3])}" if self.left_out else ""
        return [
            f"{self.result}: {self.path}:{one.line}: "
            f"{'(removed) ' if one.is_removed else ''}{one.text}; {self.nearest}{rest}"
            for one in (self.unrun if self.result is not ReviewResult.WORSE else ())
        ]


def find_worst_result(functions: list[ChangedFunction]) -> ReviewResult:
    order = list(ReviewResult)
    return min((one.result for one in functions), key=order.index, default=ReviewResult.SAME)
