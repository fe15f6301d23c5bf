"""Two zoo runs on a terminal: what starts, holds and is launched otherwise on the later one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.runs.zoo.release_changes import ZooChange, ZooChanges
from reports.shared.tables import ReportTable, TableRows, code, quiet
from reports.shared.terminal import print_tables, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console


def print_changes(changes: ZooChanges, console: Console) -> None:
    tables = [table for table in (make_table(changes), make_kernel_table(changes)) if table.rows]
    print_tables(tables, console)
    console.print(to_plain_text(describe_changes(changes)), soft_wrap=True)
    if changes.not_compared:
        text = f"run on one of the two alone: {', '.join(changes.not_compared)}"
        console.print(to_plain_text(text), soft_wrap=True)
    if not changes.compared:
        console.print("nothing is compared")
    first, second = changes.runs
    console.print(to_plain_text(f"again: unfix report {first}, unfix report {second}"))


def make_table(changes: ZooChanges) -> ReportTable:
    """Make a row for each change, the worse ones first."""
    before, after = changes.releases
    ordered = sorted(changes.changes, key=lambda change: (not change.is_worse, change.name))
    rows: TableRows = [
        [code(one.name), one.claim, one.before, one.after, quiet(one.headline)] for one in ordered
    ]
    return ReportTable("Changes", ("name", "claim", before, after, "why"), rows)


def make_kernel_table(changes: ZooChanges) -> ReportTable:
    before, after = changes.releases
    rows: TableRows = [[code(kernel), f"{after} alone"] for kernel in changes.gained]
    rows += [[code(kernel), f"{before} alone"] for kernel in changes.lost]
    return ReportTable("Kernels", ("kernel", "launched on"), rows)


def describe_changes(changes: ZooChanges) -> str:
    """Describe a comparison in one sentence: '2 of 90 rows changed, one for the worse'."""
    changed = {change.name for change in changes.changes}
    worse = {change.name for change in changes.changes if change.is_worse}
    first, second = changes.releases
    return (
        f"{first} to {second}: {len(changed)} of {changes.compared} rows "
        f"changed, {len(worse)} for the worse; {_count_starts(changes.changes)}; "
        f"{len(changes.gained)} kernels gained, {len(changes.lost)} lost"
    )


def _count_starts(changes: list[ZooChange]) -> str:
    starts = [change for change in changes if change.claim == "starts"]
    began = sum(change.after == "holds" for change in starts)
    return f"{began} start now, {sum(change.before == 'holds' for change in starts)} no longer"
