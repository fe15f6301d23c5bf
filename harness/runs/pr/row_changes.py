"""The rows of the zoo before a change and after it: each claim, and the answers themselves.

Both ends draw the same inputs, so a difference beyond rounding is the change's, also where the
claim holds, or fails for a *known* reason that would explain an error of any size.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.outcomes import Verdict
from harness.store.pr.part_results import OTHER_BITS, SAME_BITS, ClaimChange
from harness.store.zoo.values import ArchitectureResult, ClaimResult, ZooClaim, ZooRun

_WRONG = (Verdict.FAILS, Verdict.KNOWN)


def compare_rows(before: ZooRun, after: ZooRun) -> list[ClaimChange]:
    """Pair the claims and answers of both ends.

    A row that only the earlier end has is one change, of whether it starts.
    """
    earlier = {one.name: one for one in before.architectures}
    return [
        change
        for later in after.architectures
        if later.name in earlier
        for change in _compare_row(earlier[later.name], later)
    ]


def _compare_row(before: ArchitectureResult, after: ArchitectureResult) -> Iterator[ClaimChange]:
    if after.absent and not before.absent:
        verdict = "holds" if before.starts else "fails"
        yield ClaimChange(after.name, ZooClaim.STARTS, verdict, "absent", after.absent)
    if after.absent or before.absent:
        return
    old = {claim.claim: claim for claim in before.claims}
    is_mended = any(
        claim.verdict is Verdict.HOLDS and claim.claim in old and old[claim.claim].verdict in _WRONG
        for claim in after.claims
    )
    for claim in after.claims:
        earlier = old.get(claim.claim)
        yield ClaimChange(
            architecture=after.name,
            claim=claim.claim.value,
            before=earlier.verdict.value if earlier else Verdict.UNTESTED.value,
            after=claim.verdict.value,
            headline=claim.headline,
            difference=_compare_errors(earlier, claim) if earlier else "",
            is_explained=is_mended,
        )
    for name in before.answers.keys() & after.answers.keys():
        difference = before.answers[name].describe_difference(after.answers[name])
        is_same = before.answers[name].digest == after.answers[name].digest
        word = SAME_BITS if is_same else OTHER_BITS
        yield ClaimChange(
            *(after.name, f"answers of {name}", "", word),
            difference=difference,
            is_explained=is_mended,
        )


def _compare_errors(before: ClaimResult, after: ClaimResult) -> str:
    """Describe how a claim's error grew, by more than rounding does."""
    if before.error is None or after.error is None or after.tolerance is None:
        return ""
    if after.error - before.error <= after.tolerance:
        return ""
    return f"off by {before.error:.2g} before and by {after.error:.2g} now"
