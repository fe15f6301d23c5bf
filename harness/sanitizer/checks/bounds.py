"""Is an access outside of the memory that its pointer is meant for?

One comparison without signs finds out. Example: a float32 tensor of 6 elements at 4096 has 24
bytes, so the limit of an access of 4 bytes is 24 - 4 + 1 = 21: it is outside if its address - 4096
is at least 21. Of a tensor with fewer bytes than the access the limit is 0, and any address is out.
"""

from __future__ import annotations

from functools import reduce

from harness.sanitizer.checks.words import CheckCode, CheckedAccess, G, Lane, Region, V
from harness.sanitizer.violations.kinds import ViolationKind


def measure_limit(code: CheckCode[V], size_plus_one: V, access_bytes: V) -> V:
    """Return the first distance from a region's start at which an access no longer fits."""
    return code.clamp_to_zero(code.subtract(size_plus_one, access_bytes))


def is_outside(code: CheckCode[V], address: V, region: Region[V]) -> V:
    return code.is_at_least(code.subtract(address, region.start), region.limit)


def check_bounds(access: CheckedAccess[V, G]) -> None:
    code, regions = access.code, access.regions()

    def is_outside_all(lane: Lane[V]) -> V:
        return reduce(code.both, [is_outside(code, lane.address, one) for one in regions])

    if regions:
        access.report_place(ViolationKind.OUT_OF_BOUNDS, is_outside_all)
