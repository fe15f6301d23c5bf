"""What changed in the zoo from one release to another: starts, claims, kernels.

Only what both runs ran is compared. Where an architecture starts on one release alone, that is its
one change: its other claims have no results there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.core.outcomes import Verdict
from harness.store.zoo.values import ArchitectureResult, ZooClaim, ZooRun

ABSENT = "absent"
NO_RESULT = "no result"
GOOD_WORDS = ("holds", "known")


class ZooChange(msgspec.Struct, frozen=True):
    """A claim about one row that has another verdict on the later release."""

    name: str
    claim: str
    before: str  # a verdict, or absent
    after: str
    headline: str = ""  # of the later result

    @property
    def is_worse(self) -> bool:
        is_lost = self.before in GOOD_WORDS and self.after not in GOOD_WORDS
        return is_lost or self.after == Verdict.FAILS != self.before


class ZooChanges(msgspec.Struct, frozen=True):
    """All that changed between two runs."""

    releases: tuple[str, str]
    runs: tuple[str, str]
    compared: int  # rows
    changes: list[ZooChange] = []
    gained: list[str] = []  # kernels that the later run alone launched
    lost: list[str] = []
    moved: list[tuple[str, str]] = []  # of a name that one module has on each, and not the same
    not_compared: list[str] = []  # rows that one of the runs did not run
    is_named: bool = False  # the user named the rows

    @property
    def is_worse(self) -> bool:
        return any(change.is_worse for change in self.changes)

    @property
    def is_incomplete(self) -> bool:
        """Return whether nothing was compared, or not all rows that the user named."""
        return not self.compared or (self.is_named and bool(self.not_compared))


def compare_runs(before: ZooRun, after: ZooRun, names: Sequence[str] = ()) -> ZooChanges:
    """Compare two runs, or these rows of them."""
    earlier, later = ({row.name: row for row in run.architectures} for run in (before, after))
    both = [name for name in later if name in earlier and (not names or name in names)]
    changes = [change for name in both for change in _compare_rows(earlier[name], later[name])]
    old, new = (
        {kernel for name in both for kernel in rows[name].kernels} for rows in (earlier, later)
    )
    gained, lost = sorted(new - old), sorted(old - new)
    moved = _pair_moved(sorted(old), sorted(new))
    wanted = set(names) or set(earlier) | set(later)
    return ZooChanges(
        releases=(before.release, after.release),
        runs=(before.id, after.id),
        compared=len(both),
        changes=changes,
        gained=[name for name in gained if not any(name == pair[1] for pair in moved)],
        lost=[name for name in lost if not any(name == pair[0] for pair in moved)],
        moved=moved,
        not_compared=sorted(wanted - set(both)),
        is_named=bool(names),
    )


def _pair_moved(old: list[str], new: list[str]) -> list[tuple[str, str]]:
    """Pair the kernels of one name, the only one among all of each run, that lie in two modules.

    By the name: that both have one text is not looked at.
    """

    def find_only(kernels: list[str]) -> dict[str, str]:
        names = [kernel.rpartition(":")[2] for kernel in kernels]
        pairs = zip(names, kernels, strict=True)
        return {name: kernel for name, kernel in pairs if names.count(name) == 1}

    earlier, later = find_only(old), find_only(new)
    pairs = [(kernel, later[name]) for name, kernel in earlier.items() if name in later]
    return [(before, after) for before, after in pairs if before != after]


def _compare_rows(before: ArchitectureResult, after: ArchitectureResult) -> list[ZooChange]:
    old, new = _collect_verdicts(before), _collect_verdicts(after)
    if old[ZooClaim.STARTS] != new[ZooClaim.STARTS]:
        claims = [ZooClaim.STARTS]
    else:
        claims = [claim for claim in ZooClaim if claim in old or claim in new]
    headlines = {claim.claim: claim.headline for claim in after.claims}
    return [
        ZooChange(after.name, claim.value, *pair, headlines.get(claim, after.absent))
        for claim in claims
        if (pair := (old.get(claim, NO_RESULT), new.get(claim, NO_RESULT)))[0] != pair[1]
    ]


def _collect_verdicts(row: ArchitectureResult) -> dict[ZooClaim, str]:
    """Return each claim's verdict; `starts` is always there."""
    if row.absent:
        return {ZooClaim.STARTS: ABSENT}
    verdicts = {claim.claim: claim.verdict.value for claim in row.claims}
    return {ZooClaim.STARTS: NO_RESULT, **verdicts}
