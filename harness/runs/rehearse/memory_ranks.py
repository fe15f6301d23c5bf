"""The rank of a finding whose batch does not fit on the card.

A dry run goes on behind an allocation that does not fit, and a server does not. Whether a server
can still do what a later launch does depends on the pool, which `--mem-fraction-static` sizes. A
launch before that allocation is one that the server makes, whatever comes behind it.

Example: a batch needs 13 GB more than the card has, beside a pool of 84 GB of which it uses 6 GB.
With a pool of 71 GB it fits, so what its launches do is near. If it needed 90 GB more, no pool
would be small enough, and its launches are possible by arithmetic alone.
"""

from __future__ import annotations

from harness.store.rehearse.values import FindingRank, RehearsalFinding


def rank_by_memory(
    finding: RehearsalFinding, excess: int, spare: int, is_smallest: bool = True
) -> None:
    """Lower a finding's rank by the bytes that its batch lacks and the pool could spare.

    `is_smallest` says that no smaller batch shows the finding; if one may, and may fit, it is near.
    """
    if excess <= 0 or finding.fits or not finding.kernel:
        return
    lacking = f"the batch needs {excess / 1e9:.1f} GB more than the card has"
    is_open = finding.rank is FindingRank.REACHABLE and not is_smallest
    if excess > spare and not is_open:
        finding.rank = FindingRank.POSSIBLE
        finding.headline += f"; {lacking}, and the pool can spare {max(0, spare) / 1e9:.1f} GB"
        return
    if finding.rank is FindingRank.REACHABLE:
        finding.rank = FindingRank.NEAR
    room = "a smaller --mem-fraction-static makes room"
    if excess > spare:
        room = "no smaller batch was searched that fits and shows it, too"
    finding.headline += f"; {lacking}: {room}"
