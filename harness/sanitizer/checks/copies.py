"""Is memory read into which an asynchronous copy may still be going? A write takes its place."""

from __future__ import annotations

from harness.sanitizer.checks.words import CheckedAccess, G, Mark, V
from harness.sanitizer.violations.kinds import ViolationKind

_KINDS = {
    Mark.COPY_IN_PROGRESS: ViolationKind.COPY_IN_PROGRESS,
    Mark.COPY_WITHOUT_BARRIER: ViolationKind.COPY_WITHOUT_BARRIER,
}


def check_copies(access: CheckedAccess[V, G]) -> None:
    if access.verb == "read":
        for mark, kind in _KINDS.items():
            for is_copied in access.marks(mark):
                access.report(kind, is_copied)
    else:
        for _ in access.marks(Mark.COPY_IN_PROGRESS):
            access.clear_mark(Mark.COPY_IN_PROGRESS)
