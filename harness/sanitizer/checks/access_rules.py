"""Does an access rule exclude the element for this program? An update both reads and writes."""

from __future__ import annotations

from harness.sanitizer.checks.words import CheckedAccess, G, Mark, V
from harness.sanitizer.violations.kinds import FORBIDDEN

_MARKS = {"read": Mark.READ_EXCLUDED, "write": Mark.WRITE_EXCLUDED}


def check_access_rules(access: CheckedAccess[V, G]) -> None:
    for verb, kind in FORBIDDEN.items():
        if access.verb in (verb, "update"):
            for is_excluded in access.marks(_MARKS[verb]):
                access.report(kind, is_excluded)
