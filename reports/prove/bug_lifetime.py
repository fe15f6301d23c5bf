"""How long each bug lived: what running said of every release, beside what the sources say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.runs.prove.verdicts import BUG_OUTCOMES
from harness.store.prove.values import CellResult, CellVerdict, SideOutcome
from reports.shared.formatting import STATE_WORDS


@dataclass(frozen=True)
class BugOnRelease:
    """A toggle on one release."""

    release: str
    source_state: str  # fixed, buggy, absent, stale; '' where nobody looked
    observed_state: str  # fixed or buggy, by running; '' where running said nothing
    contradicting_guards: tuple[str, ...] = ()  # the guards that contradict the sources


@dataclass(frozen=True)
class BugLifetime:
    """A toggle on all releases, from the oldest to the newest."""

    toggle: str
    releases: tuple[BugOnRelease, ...]

    @property
    def first_buggy(self) -> str:
        """The first release that has the bug, found by running."""
        return next(
            (lived.release for lived in self.releases if lived.observed_state == "buggy"), ""
        )

    @property
    def last_buggy(self) -> str:
        return next(
            (lived.release for lived in reversed(self.releases) if lived.observed_state == "buggy"),
            "",
        )

    @property
    def span(self) -> str:
        """'0.5.9 to 0.5.11', '0.5.9', or '' where running found no bug."""
        return (
            self.first_buggy
            if self.first_buggy == self.last_buggy
            else f"{self.first_buggy} to {self.last_buggy}"
        )

    @property
    def contradictions(self) -> tuple[BugOnRelease, ...]:
        return tuple(lived for lived in self.releases if lived.contradicting_guards)

    @property
    def was_observed(self) -> bool:
        return any(lived.observed_state for lived in self.releases)


def derive_observed_state(cell: CellResult) -> str:
    """What running says of the release as it is: 'fixed', 'buggy' or '' where it says nothing.

    Of a cell that was toggled, the side that equals the state is the release as it is.
    """
    if cell.verdict is CellVerdict.HAS_BUG:
        return "buggy"
    if cell.verdict is CellVerdict.HAS_FIX:
        return "fixed"
    side = cell.sides.get("as is") or cell.sides.get(cell.state)
    if side and not side.reach:
        return ""
    said = ""
    if side and side.outcome is SideOutcome.PASSED:
        said = "fixed"
    elif side and side.outcome in BUG_OUTCOMES:
        said = "buggy"
    if not said and cell.verdict is CellVerdict.DIFFERS:
        said = {"fixed": "buggy", "buggy": "fixed"}.get(cell.state, "")
    return said


def make_lifetime(
    toggle: str, releases: Iterable[str], states: dict[str, str], cells: Iterable[CellResult]
) -> BugLifetime:
    """From the cells of one toggle; `states` holds what the sources say for each release.

    Where some ran as the release is, nothing is derived from those that were toggled.
    """
    by_release: dict[str, list[CellResult]] = {}
    for cell in cells:
        by_release.setdefault(cell.release, []).append(cell)
    for release, there in by_release.items():
        as_is = [cell for cell in there if "as is" in cell.sides]
        by_release[release] = as_is or there
    on = [
        make_bug_on_release(release, states.get(release, ""), by_release.get(release, []))
        for release in releases
    ]
    return BugLifetime(toggle, tuple(on))


def make_bug_on_release(release: str, source: str, cells: list[CellResult]) -> BugOnRelease:
    said = {derive_observed_state(cell) for cell in cells}
    answer = "buggy" if "buggy" in said else "fixed" if "fixed" in said else ""
    differs = [cell.guard for cell in cells if cell.verdict is CellVerdict.DIFFERS]
    if not differs and answer and source in STATE_WORDS and answer != source:
        differs = [cell.guard for cell in cells if derive_observed_state(cell) == answer]
    return BugOnRelease(release, source, answer, tuple(differs))


def describe_contradiction(bug_on_release: BugOnRelease) -> str:
    """A contradiction as a sentence's end."""
    said = STATE_WORDS.get(bug_on_release.observed_state, "nothing clear")
    return f"running says {said!r}, the sources say {bug_on_release.source_state or 'nothing'}".replace(
        "'", '"'
    )
