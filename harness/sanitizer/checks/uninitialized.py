"""Is memory read that nothing has written? A write initializes it."""

from __future__ import annotations

from harness.sanitizer.checks.words import CheckedAccess, G, Mark, V
from harness.sanitizer.violations.kinds import ViolationKind


def check_initialized(access: CheckedAccess[V, G]) -> None:
    for is_empty in access.marks(Mark.UNINITIALIZED):
        if access.verb != "write":
            access.report(ViolationKind.UNINITIALIZED_READ, is_empty)
        if access.verb != "read":
            access.clear_mark(Mark.UNINITIALIZED)
