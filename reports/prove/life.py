"""How long each bug lived: what running said of every release, beside what the sources say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.prove.verdicts import TELLING
from harness.store.prove.values import Cell, Outcome, Verdict
from reports.shared.texts import FOUND


@dataclass(frozen=True)
class Lived:
    """A toggle on one release."""

    release: str
    source: str  # fixed, buggy, absent, stale; '' where nobody looked
    found: str  # fixed or buggy, by running; '' where running said nothing
    differs: tuple[str, ...] = ()  # the guards that contradict the sources


@dataclass(frozen=True)
class Life:
    """A toggle on all releases, from the oldest to the newest."""

    toggle: str
    on: tuple[Lived, ...]

    @property
    def first(self) -> str:
        """The first release that has the bug, found by running."""
        return next((lived.release for lived in self.on if lived.found == "buggy"), "")

    @property
    def last(self) -> str:
        return next((lived.release for lived in reversed(self.on) if lived.found == "buggy"), "")

    @property
    def span(self) -> str:
        """'0.5.9 to 0.5.11', '0.5.9', or '' where running found no bug."""
        return self.first if self.first == self.last else f"{self.first} to {self.last}"

    @property
    def contradictions(self) -> tuple[Lived, ...]:
        return tuple(lived for lived in self.on if lived.differs)

    @property
    def ran(self) -> bool:
        return any(lived.found for lived in self.on)


def found(cell: Cell) -> str:
    """What running says of the release as it is: 'fixed', 'buggy' or '' where it says nothing.

    Of a cell that was toggled, the side that equals the state is the release as it is.
    """
    if cell.verdict is Verdict.HAS_BUG:
        return "buggy"
    if cell.verdict is Verdict.HAS_FIX:
        return "fixed"
    side = cell.sides.get("as is") or cell.sides.get(cell.state)
    if side and not side.reach:
        return ""
    said = ""
    if side and side.outcome is Outcome.PASSED:
        said = "fixed"
    elif side and side.outcome in TELLING:
        said = "buggy"
    if not said and cell.verdict is Verdict.DIFFERS:
        said = {"fixed": "buggy", "buggy": "fixed"}.get(cell.state, "")
    return said


def life(
    toggle: str, releases: Iterable[str], states: dict[str, str], cells: Iterable[Cell]
) -> Life:
    """From the cells of one toggle; `states` holds what the sources say for each release.

    Where some ran as the release is, nothing is derived from those that were toggled.
    """
    by_release: dict[str, list[Cell]] = {}
    for cell in cells:
        by_release.setdefault(cell.release, []).append(cell)
    for release, there in by_release.items():
        as_is = [cell for cell in there if "as is" in cell.sides]
        by_release[release] = as_is or there
    on = [
        lived(release, states.get(release, ""), by_release.get(release, [])) for release in releases
    ]
    return Life(toggle, tuple(on))


def lived(release: str, source: str, cells: list[Cell]) -> Lived:
    said = {found(cell) for cell in cells}
    answer = "buggy" if "buggy" in said else "fixed" if "fixed" in said else ""
    differs = [cell.guard for cell in cells if cell.verdict is Verdict.DIFFERS]
    if not differs and answer and source in FOUND and answer != source:
        differs = [cell.guard for cell in cells if found(cell) == answer]
    return Lived(release, source, answer, tuple(differs))


def in_words(lived: Lived) -> str:
    """A contradiction as a sentence's end."""
    said = FOUND.get(lived.found, "nothing clear")
    return f"running says {said!r}, the sources say {lived.source or 'nothing'}".replace("'", '"')
