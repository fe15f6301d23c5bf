"""Is an address wrong in itself: did an integer in it overflow, is it misaligned?

How an integer's state travels to the address is each back end's own matter.
"""

from __future__ import annotations

from harness.sanitizer.checks.words import CheckedAccess, G, Mark, V
from harness.sanitizer.violations.kinds import ViolationKind


def check_overflow(access: CheckedAccess[V, G]) -> None:
    for has_overflowed in access.marks(Mark.OVERFLOWED):
        access.report_place(ViolationKind.OVERFLOW, has_overflowed)


def check_alignment(access: CheckedAccess[V, G]) -> None:
    for is_misaligned in access.marks(Mark.MISALIGNED):
        access.report_place(ViolationKind.MISALIGNED, is_misaligned)
