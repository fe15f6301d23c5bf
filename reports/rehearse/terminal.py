"""A rehearsal on a terminal: deployments, batches, the nearest kernels, the findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.store.rehearse.values import DeploymentChange, FindingRank, RehearsalRun
from reports.rehearse import view
from reports.shared.terminal import TONE_STYLES, print_ending, print_tables, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

NEAREST_KERNELS = 12


def print_changes(
    runs: list[RehearsalRun], changes: list[DeploymentChange], console: Console
) -> None:
    print_tables([view.make_change_table(runs, changes, is_short=True)], console)
    worse = any(change.is_worse for change in changes)
    before, after = runs
    text = view.describe_changes(before, after, changes)
    console.print(to_plain_text(text, "bold red" if worse else "green"), soft_wrap=True)
    for run in runs:
        console.print(to_plain_text(f"again: unfix report {run.id}", "dim"))


def print_run(run: RehearsalRun, console: Console) -> None:
    tables = [view.make_table(run)]
    if len(run.deployments) == 1:
        tables += [view.make_phase_table(run.deployments[0])]
    tables += [view.make_kernel_table(run, NEAREST_KERNELS), view.make_unchecked_table(run)]
    print_tables(tables, console)
    for text, style in _list_lines(run):
        console.print(to_plain_text(text, style), soft_wrap=True)
    print_ending(console, run.green, view.describe_run(run), [], run.id)


def _list_lines(run: RehearsalRun) -> Iterator[tuple[str, str]]:
    """List the lines below the tables, each with its style."""
    for result in run.deployments:
        if result.refusal:
            yield f"does not start: {result.name}: {result.refusal}", "bold red"
    for result, finding in view.list_findings(run):
        if finding.rank is FindingRank.POSSIBLE:  # the page has these
            continue
        where = f"{finding.file}:{finding.line}: " if finding.file else ""
        text = f"{finding.rank}: {result.name}: {finding.phase}: {where}{finding.headline}"
        yield text, TONE_STYLES[view.get_mark(finding).tone]
        if finding.text:
            yield f"    {finding.text}", "dim"
        if finding.threshold:
            yield f"    {view.describe_beginning(finding)}: {finding.threshold}", ""
        if finding.pool_threshold not in ("", finding.threshold):
            yield f"    {view.describe_pool_beginning(finding)}: {finding.pool_threshold}", ""
    if stand_ins := view.describe_stand_ins(run):
        yield stand_ins, "dim"
