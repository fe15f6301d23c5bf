"""Do two accesses of one piece of memory, at least one of them a write, have no order?

Every access enters itself into tables beside the memory and is compared with earlier ones: a read
with the last write, a write with the last write and with the reads since. Example: program 2 reads
an element that program 0 has written with a new value in the same launch; nothing orders the two,
so the read could come first.

A write of the value that is there already is no race, since it cannot change a result; neither are
two atomic updates. A volatile access is there to order others: as a read it is no race, as a write
it counts as an update.
"""

from __future__ import annotations

from harness.sanitizer.checks.words import CheckedAccess, Earlier, G, V
from harness.sanitizer.violations.kinds import RACES


def check_races(access: CheckedAccess[V, G]) -> None:
    if access.verb == "read":
        check = _check_read
    elif access.verb == "update" or access.may_order:
        check = _check_update
    else:
        check = _check_write
    if not (access.verb == "read" and access.may_order):
        for granule in access.granules():
            check(access, granule)


def _check_read(access: CheckedAccess[V, G], granule: G) -> None:
    writer = access.enter(granule)
    changed = access.was(writer, Earlier.CHANGED)
    access.report_race(RACES["write", "read"], granule, writer, changed)


def _check_update(access: CheckedAccess[V, G], granule: G) -> None:
    writer = access.enter(granule)
    stored = access.was(writer, Earlier.STORED)
    access.report_race(RACES["write", "update"], granule, writer, stored)
    for reader in access.find_reads(granule):
        access.report_race(RACES["read", "write"], granule, reader)


def _check_write(access: CheckedAccess[V, G], granule: G) -> None:
    code, changes = access.code, access.changes(granule)
    writer = access.enter(granule, changes)
    differs, atomic = access.differs(granule), access.was(writer, Earlier.ATOMIC)
    access.report_race(RACES["update", "write"], granule, writer, atomic)
    stored = code.both(code.negate(atomic), differs)
    access.report_race(RACES["write", "write"], granule, writer, stored)
    for later in access.find_later_writes(granule, where=differs):
        stored = code.both(code.negate(access.was(later, Earlier.ATOMIC)), differs)
        access.report_race(RACES["write", "write"], granule, later, stored)
    for reader in access.find_reads(granule, where=changes):
        access.report_race(RACES["read", "write"], granule, reader, changes)
