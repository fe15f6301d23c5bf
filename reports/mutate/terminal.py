"""A mutation run on a terminal: the scores, then survivors by function with their diff and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from harness.store.mutate.faults import MutationFault
from harness.store.mutate.values import FaultResult, MutationRun
from reports.mutate import view
from reports.mutate.view import FATE_MARKS, FaultGroup, MutationView
from reports.shared.terminal import TONE_STYLES, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
MAX_FUNCTIONS = 40  # rows; the page has them all


def print_run(run: MutationRun, console: Console) -> None:
    seen = view.make_view(run)
    if run.fates:
        print_scores("family", seen.families, console)
        print_scores("function", seen.functions[:MAX_FUNCTIONS], console)
        print_scores("operator", seen.operators, console)
    print_survivors(seen, console)
    for share in seen.unreached:
        words = "; ".join(dict.fromkeys(fated.why for fated in share.outcomes))
        told = f"unreached: {len(share.outcomes)} in {share.name}: {words}"
        console.print(to_plain_text(told, TONE_STYLES["unreached"]), soft_wrap=True)
    if seen.unreached:
        console.print(to_plain_text(f"  {view.UNREACHED_ADVICE}", "dim"), soft_wrap=True)
    if run.elsewhere:
        console.print(to_plain_text(run.elsewhere, "dim"), soft_wrap=True)
    for told in run.left_out:
        console.print(to_plain_text(f"not asked: {told}", "dim"), soft_wrap=True)
    for problem in run.problems:
        console.print(to_plain_text(f"red: {problem}", "bold red"), soft_wrap=True)
    colour = "green" if run.green else "bold red"
    verdict = "green" if run.green else "red"
    console.print(
        Text.assemble((verdict, colour), "  ", to_plain_text(view.describe_run(run))),
        soft_wrap=True,
    )
    console.print(to_plain_text(f"again: unfix report {run.id}", "dim"))


def print_scores(title: str, shares: list[FaultGroup], console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column(title, overflow="fold")
    table.add_column("killed of reached", justify="right")
    for word, mark in FATE_MARKS.items():
        table.add_column(f"{mark.glyph} {word}", justify="right")
    for share in shares:
        counts = [str(count) if count else "" for count in share.counts.values()]
        style = TONE_STYLES["toothless"] if share.counts["survived"] else ""
        table.add_row(to_plain_text(share.name), to_plain_text(share.score_text, style), *counts)
    console.print(table)
    console.print()


def print_survivors(mutation_view: MutationView, console: Console) -> None:
    for share in mutation_view.survivors:
        many = "s" if len(share.outcomes) > 1 else ""
        console.print(
            to_plain_text(f"{len(share.outcomes)} survivor{many} in {share.name}", "bold")
        )
        for fated in share.outcomes:
            print_fault(fated.fault, fated.diff, console, fated)
            console.print(
                to_plain_text(
                    f"  again: {view.make_replay_command(mutation_view.run, fated)}", "dim"
                )
            )
            console.print(
                to_plain_text(
                    f"  as a toggle: {view.make_keep_command(mutation_view.run, fated)}", "dim"
                )
            )
        console.print()
    if mutation_view.survivors:
        console.print(to_plain_text(f"A survivor: {view.SURVIVOR_ADVICE}.", "dim"), soft_wrap=True)


def print_fault(
    fault: MutationFault, diff: str, console: Console, outcome: FaultResult | None = None
) -> None:
    """One fault with its diff and, if it has one, its fate."""
    head = f"{fault.id}  {fault.operator}  {fault.target}:{fault.line}  {fault.words}"
    if outcome is not None:
        mark = view.get_mark(outcome)
        console.print(Text(f"{mark.glyph} ", TONE_STYLES[mark.tone]), to_plain_text(head), sep="")
        console.print(to_plain_text(f"  {view.describe_outcome(outcome)}"), soft_wrap=True)
    else:
        console.print(to_plain_text(head, "bold"), soft_wrap=True)
    for line in diff.splitlines():
        if not line.startswith(("---", "+++")):
            console.print(
                to_plain_text(f"    {line}", DIFF_STYLES.get(line[:1], "")), soft_wrap=True
            )
