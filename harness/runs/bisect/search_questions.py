"""The questions and answers of a search, the toggles that it searches, and its result."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

ToggleIds = frozenset[str]
NO_TOGGLES: ToggleIds = frozenset()


@dataclass(frozen=True)
class SearchQuestion:
    """A set of toggles to run with; a proof always runs afresh."""

    toggles: ToggleIds
    why: str = "search"  # base, search, proof, again


@dataclass(frozen=True)
class SearchAnswer:
    """The answer: True if the symptom shows, None if the run is inconclusive."""

    shows_symptom: bool | None
    reached: ToggleIds | None = None  # toggles whose code ran; None: unknown


T = TypeVar("T")
# The questions of one batch do not depend on each other: they may run side by side.
QuestionGenerator = Generator[list[SearchQuestion], list[SearchAnswer], T]


@dataclass(frozen=True)
class ToggleUniverse:
    """The candidate toggles in the order in which they are tried, and the pairs that conflict."""

    toggles: tuple[str, ...]
    conflicts: frozenset[ToggleIds] = frozenset()  # pairs that conflict

    def can_combine(self, toggles: ToggleIds) -> bool:
        """Return whether no two toggles conflict."""
        return not any(pair <= toggles for pair in self.conflicts)

    def sort_toggles(self, toggles: ToggleIds) -> list[str]:
        return [name for name in self.toggles if name in toggles]

    def list_largest_sets(self, toggles: ToggleIds) -> list[ToggleIds]:
        """List sets without conflicts that cover every combinable pair; one if none conflict."""
        clashing = {name for pair in self.conflicts if pair <= toggles for name in pair}
        found: list[ToggleIds] = []
        free = toggles - clashing
        for first in self.sort_toggles(frozenset(clashing)) or [""]:
            for second in self.sort_toggles(frozenset(clashing)) or [""]:
                wanted = frozenset({first, second} - {""})
                if not self.can_combine(wanted) or any(wanted <= held for held in found):
                    continue
                grown = free | wanted
                for name in self.sort_toggles(frozenset(clashing)):
                    if self.can_combine(grown | {name}):
                        grown |= {name}
                found.append(grown)
        return found


@dataclass
class SearchResult:
    """The result of a search."""

    minimal_sets: list[ToggleIds] = field(default_factory=list)  # each shows the symptom
    cannot_tell: str = ""  # the reason of an inconclusive result
    confidence: float | None = None  # for a flaky symptom
    least_detectable_rate: float | None = None  # the lowest rate that the search detects
    others_show_symptom: bool | None = False  # in runs with all toggles but the culprits
