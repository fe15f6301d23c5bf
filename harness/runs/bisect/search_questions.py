"""The questions and answers of a search, the toggles that it searches, and its result."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

ToggleIds = frozenset[str]
NO_TOGGLES: ToggleIds = frozenset()


@dataclass(frozen=True)
class SearchQuestion:
    """Does the symptom show with these toggles? A proof is always run afresh."""

    toggles: ToggleIds
    why: str = "search"  # base, search, proof, again


@dataclass(frozen=True)
class SearchAnswer:
    """Whether the symptom shows; None if the run is inconclusive."""

    shows_symptom: bool | None
    reached: ToggleIds | None = None  # those whose code ran; None: not known


T = TypeVar("T")
# The questions of one batch do not depend on each other: they may run side by side.
QuestionGenerator = Generator[list[SearchQuestion], list[SearchAnswer], T]


@dataclass(frozen=True)
class ToggleUniverse:
    """The candidate toggles in the order in which they are tried, and the pairs that conflict."""

    toggles: tuple[str, ...]
    conflicts: frozenset[ToggleIds] = frozenset()  # pairs

    def can_combine(self, toggles: ToggleIds) -> bool:
        """Whether no two of them conflict."""
        return not any(pair <= toggles for pair in self.conflicts)

    def sort_toggles(self, toggles: ToggleIds) -> list[str]:
        return [name for name in self.toggles if name in toggles]

    def list_largest_sets(self, toggles: ToggleIds) -> list[ToggleIds]:
        """Sets without conflicts that cover every combinable pair; one set where none conflict."""
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

    minimal_sets: list[ToggleIds] = field(default_factory=list)  # each shows it, and can spare none
    cannot_tell: str = ""  # why not, where it cannot be told
    confidence: float | None = None  # of a symptom that does not always show
    least_detectable_rate: float | None = (
        None  # and how often it must show at least to have been seen
    )
    others_show_symptom: bool | None = False  # with all but the culprits
