"""Two zoo runs beside each other: what starts, holds and is launched otherwise on the later one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.runs.zoo.release_changes import ZooChange, ZooChanges
from reports.shared import html_file, markdown
from reports.shared.tables import ReportTable, TableRows, make_code_cell, make_quiet_cell
from reports.shared.terminal import print_tables, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console


def print_changes(changes: ZooChanges, console: Console) -> None:
    print_tables(list_tables(changes), console)
    for sentence in describe_all(changes):
        console.print(to_plain_text(sentence), soft_wrap=True)


def render_markdown(changes: ZooChanges) -> str:
    headline, *rest = describe_all(changes)
    tables = [markdown.render_report_table(table) for table in list_tables(changes)]
    return markdown.join_parts([f"## {headline}", *tables, *map(markdown.escape_text, rest)])


def render_page(changes: ZooChanges, commit: str) -> str:
    values = {
        "changes": changes,
        "is_green": not (changes.is_worse or changes.is_incomplete),
        "sentences": describe_all(changes),
        "tables": list_tables(changes),
    }
    return html_file.render_template(
        "zoo/changes.html.j2", values, [f"SGLang {' to '.join(changes.releases)}"], [commit]
    )


def list_tables(changes: ZooChanges) -> list[ReportTable]:
    return [table for table in (make_table(changes), make_kernel_table(changes)) if table.rows]


def describe_all(changes: ZooChanges) -> list[str]:
    """Describe a comparison, what it left out, and how to see both runs."""
    sentences = [describe_changes(changes)]
    if changes.not_compared:
        sentences.append(f"run on one of the two alone: {', '.join(changes.not_compared)}")
    if not changes.compared:
        sentences.append("nothing is compared")
    earlier, later = changes.runs
    return [*sentences, f"again: unfix report {earlier}, unfix report {later}"]


def make_table(changes: ZooChanges) -> ReportTable:
    """Make a row for each change, the worse ones first."""
    before, after = changes.releases
    ordered = sorted(changes.changes, key=lambda change: (not change.is_worse, change.name))
    rows: TableRows = [
        [
            *(make_code_cell(change.name), change.claim, change.before, change.after),
            make_quiet_cell(change.headline),
        ]
        for change in ordered
    ]
    return ReportTable("Changes", ("name", "claim", before, after, "why"), rows)


def make_kernel_table(changes: ZooChanges) -> ReportTable:
    before, after = changes.releases
    rows: TableRows = [[make_code_cell(kernel), f"{after} alone"] for kernel in changes.gained]
    rows += [[make_code_cell(kernel), f"{before} alone"] for kernel in changes.lost]
    rows += [
        [
            make_code_cell(later),
            make_quiet_cell(f"both; {before} has this name in {earlier.rpartition(':')[0]}"),
        ]
        for earlier, later in changes.moved
    ]
    return ReportTable("Kernels", ("kernel", "launched on"), rows)


def describe_changes(changes: ZooChanges) -> str:
    """Describe a comparison in one sentence: '2 of 90 rows changed, one for the worse'."""
    changed = {change.name for change in changes.changes}
    worse = {change.name for change in changes.changes if change.is_worse}
    earlier, later = changes.releases
    gained, lost, moved = (len(each) for each in (changes.gained, changes.lost, changes.moved))
    return (
        f"{earlier} to {later}: {len(changed)} of {changes.compared} rows "
        f"changed, {len(worse)} for the worse; {_count_starts(changes.changes)}; "
        f"{gained} kernels gained, {lost} lost, {moved} moved"
    )


def _count_starts(changes: list[ZooChange]) -> str:
    starts = [change for change in changes if change.claim == "starts"]
    began = sum(change.after == "holds" for change in starts)
    return f"{began} start now, {sum(change.before == 'holds' for change in starts)} no longer"
