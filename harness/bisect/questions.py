"""What a search asks and hears: it yields batches of questions and is sent an answer to each."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

Toggles = frozenset[str]
NOTHING: Toggles = frozenset()


@dataclass(frozen=True)
class Question:
    """Does the symptom show with these toggles? Asked for a purpose, and afresh for a proof."""

    toggles: Toggles
    why: str = "search"  # base, search, proof, again

    @property
    def fresh(self) -> bool:
        return self.why != "search"


@dataclass(frozen=True)
class Answer:
    """Whether it shows; None: it cannot be told."""

    shows: bool | None
    ran: Toggles | None = None  # those whose code ran; None: not known


T = TypeVar("T")
# The questions of one batch do not depend on each other: they may run side by side.
Search = Generator[list[Question], list[Answer], T]


@dataclass(frozen=True)
class Universe:
    """The toggles that may be meant, in the order in which they are tried, and which clash."""

    toggles: tuple[str, ...]
    conflicts: frozenset[Toggles] = frozenset()  # pairs

    def fits(self, toggles: Toggles) -> bool:
        """Whether they can all be in together."""
        return not any(pair <= toggles for pair in self.conflicts)

    def ordered(self, toggles: Toggles) -> list[str]:
        return [name for name in self.toggles if name in toggles]

    def largest(self, toggles: Toggles) -> list[Toggles]:
        """Sets that fit and together hold every pair that fits: all of them, where none clash."""
        clashing = {name for pair in self.conflicts if pair <= toggles for name in pair}
        found: list[Toggles] = []
        free = toggles - clashing
        for first in self.ordered(frozenset(clashing)) or [""]:
            for second in self.ordered(frozenset(clashing)) or [""]:
                wanted = frozenset({first, second} - {""})
                if not self.fits(wanted) or any(wanted <= held for held in found):
                    continue
                grown = free | wanted
                for name in self.ordered(frozenset(clashing)):
                    if self.fits(grown | {name}):
                        grown |= {name}
                found.append(grown)
        return found


@dataclass
class Found:
    """What a search comes to."""

    sets: list[Toggles] = field(default_factory=list)  # each shows it, and can spare none
    cannot_tell: str = ""  # why not, where it cannot be told
    sure: float | None = None  # of a symptom that does not always show
    least: float | None = None  # and how often it must show at least to have been seen
    rest_shows: bool | None = False  # with all but the culprits
