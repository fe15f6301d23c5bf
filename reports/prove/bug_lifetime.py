"""The lifetime of each bug: the state of every release by running it, and by its sources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.outcomes import Outcome, Verdict
from harness.store.prove.values import BUG_OUTCOMES, CellResult
from reports.prove.marks import STATE_WORDS


@dataclass(frozen=True)
class BugOnRelease:
    """A toggle on one release."""

    release: str
    source_state: str  # fixed, buggy, absent, stale; '' if it was not determined
    observed_state: str  # fixed or buggy, by running; '' if inconclusive
    contradicting_guards: tuple[str, ...] = ()  # the guards that contradict the sources


@dataclass(frozen=True)
class BugLifetime:
    """A toggle on all releases, from the oldest to the newest."""

    toggle: str
    releases: tuple[BugOnRelease, ...]

    @property
    def first_buggy(self) -> str:
        """The first release on which running showed the bug."""
        return next(iter(self._list_buggy()), "")

    @property
    def last_buggy(self) -> str:
        return next(reversed(self._list_buggy()), "")

    @property
    def span(self) -> str:
        """'0.5.9 to 0.5.11', '0.5.9', or '' if running showed no bug."""
        return " to ".join(dict.fromkeys((self.first_buggy, self.last_buggy)))

    def _list_buggy(self) -> list[str]:
        return [on.release for on in self.releases if on.observed_state == "buggy"]

    @property
    def contradictions(self) -> tuple[BugOnRelease, ...]:
        return tuple(lived for lived in self.releases if lived.contradicting_guards)

    @property
    def was_observed(self) -> bool:
        return any(lived.observed_state for lived in self.releases)


def derive_observed_state(cell: CellResult) -> str:
    """Derive the unpatched release's state from a run: 'fixed', 'buggy', or '' if inconclusive.

    In a toggled cell, the side that equals the state is the unpatched release.
    """
    if cell.verdict in (Verdict.HAS_BUG, Verdict.HAS_FIX):
        return "buggy" if cell.verdict is Verdict.HAS_BUG else "fixed"
    side = cell.sides.get("as is") or cell.sides.get(cell.state)
    if side and not side.reach:
        return ""
    if side and side.outcome is Outcome.PASSED:
        return "fixed"
    if side and side.outcome in BUG_OUTCOMES:
        return "buggy"
    opposite = {"fixed": "buggy", "buggy": "fixed"}
    return opposite.get(cell.state, "") if cell.verdict is Verdict.DIFFERS else ""


def make_lifetime(
    toggle: str, releases: Iterable[str], states: dict[str, str], cells: Iterable[CellResult]
) -> BugLifetime:
    """Make the lifetime from one toggle's cells; `states` has each release's state by its sources.

    On a release with lifecycle cells, its toggled cells do not count.
    """
    by_release: dict[str, list[CellResult]] = {}
    for cell in cells:
        by_release.setdefault(cell.release, []).append(cell)
    bugs = []
    for release in releases:
        on_release = by_release.get(release, [])
        as_is = [cell for cell in on_release if "as is" in cell.sides]
        bugs.append(make_bug_on_release(release, states.get(release, ""), as_is or on_release))
    return BugLifetime(toggle, tuple(bugs))


def make_bug_on_release(release: str, source: str, cells: list[CellResult]) -> BugOnRelease:
    observed = {derive_observed_state(cell) for cell in cells}
    answer = "buggy" if "buggy" in observed else "fixed" if "fixed" in observed else ""
    differs = [cell.guard for cell in cells if cell.verdict is Verdict.DIFFERS]
    if not differs and answer and source in STATE_WORDS and answer != source:
        differs = [cell.guard for cell in cells if derive_observed_state(cell) == answer]
    return BugOnRelease(release, source, answer, tuple(differs))


def describe_contradiction(bug_on_release: BugOnRelease) -> str:
    """Describe a contradiction as a sentence's end."""
    observed = STATE_WORDS.get(bug_on_release.observed_state, "nothing clear")
    source = bug_on_release.source_state or "nothing"
    return f'running shows "{observed}", the sources show "{source}"'
