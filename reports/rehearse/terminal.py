"""A rehearsal on a terminal: deployments, batches, the nearest kernels, the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from harness.store.rehearse.values import DeploymentChange, FindingRank, RehearsalRun
from reports.rehearse import view
from reports.shared.terminal import TONE_STYLES, print_tables, to_plain_text

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
    for result in run.deployments:
        if result.refusal:
            text = f"does not start: {result.name}: {result.refusal}"
            console.print(to_plain_text(text, "bold red"), soft_wrap=True)
    for result, finding in view.list_findings(run):
        if finding.rank is FindingRank.POSSIBLE:  # the page has these
            continue
        style = TONE_STYLES[view.get_mark(finding).tone]
        where = f"{finding.file}:{finding.line}: " if finding.file else ""
        text = f"{finding.rank}: {result.name}: {finding.phase}: {where}{finding.headline}"
        console.print(to_plain_text(text, style), soft_wrap=True)
        if finding.text:
            console.print(to_plain_text(f"    {finding.text}", "dim"), soft_wrap=True)
        if finding.threshold:
            text = f"    {view.describe_beginning(finding)}: {finding.threshold}"
            console.print(to_plain_text(text), soft_wrap=True)
        if finding.pool_threshold not in ("", finding.threshold):
            text = f"    {view.describe_pool_beginning(finding)}: {finding.pool_threshold}"
            console.print(to_plain_text(text), soft_wrap=True)
    console.print(to_plain_text(view.describe_stand_ins(run), "dim"), soft_wrap=True)
    verdict = ("green", "green") if run.green else ("red", "bold red")
    console.print(
        Text.assemble(verdict, "  ", to_plain_text(view.describe_run(run))), soft_wrap=True
    )
    console.print(to_plain_text(f"again: unfix report {run.id}", "dim"))
