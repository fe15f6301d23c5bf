"""The checks of an access, each written once: a module a check, and the order in which they ask.

`add_checks` is what a back end calls for each access. Causes come before what follows from them:
first where the access goes, since nothing can be looked up at a wrong address; then what is there;
then the order of accesses. To add a check, write its function into a module here, give it a row
below, and its kind a number and words in `violations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from harness.sanitizer.checks.access_rules import check_access_rules
from harness.sanitizer.checks.addresses import check_alignment, check_overflow
from harness.sanitizer.checks.bounds import check_bounds
from harness.sanitizer.checks.copies import check_copies
from harness.sanitizer.checks.races import check_races
from harness.sanitizer.checks.uninitialized import check_initialized
from harness.sanitizer.checks.words import CheckedAccess, G, V
from harness.sanitizer.violations.kinds import FORBIDDEN, RACES, ViolationKind

# A function that asks, and what it may report.
_Rows = dict[Callable[[CheckedAccess[Any, Any]], None], Iterable[ViolationKind]]
_OF_ADDRESSES: _Rows = {
    check_overflow: [ViolationKind.OVERFLOW],
    check_bounds: [ViolationKind.OUT_OF_BOUNDS],
    check_alignment: [ViolationKind.MISALIGNED],
}
_OF_RULES: _Rows = {check_access_rules: FORBIDDEN.values()}
_OF_MEMORY: _Rows = {
    check_initialized: [ViolationKind.UNINITIALIZED_READ],
    check_copies: [ViolationKind.COPY_IN_PROGRESS, ViolationKind.COPY_WITHOUT_BARRIER],
    check_races: RACES.values(),
}


def add_checks(access: CheckedAccess[V, G]) -> None:
    for rows in (_OF_ADDRESSES, _OF_RULES):
        with access.skip_reported_lanes():
            _run_checks(access, rows)
    _run_checks(access, _OF_MEMORY)


def _run_checks(access: CheckedAccess[V, G], rows: _Rows) -> None:
    for check, kinds in rows.items():
        if not access.kinds.isdisjoint(kinds):
            check(access)
