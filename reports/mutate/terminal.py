"""A mutation run on a terminal: the scores, then survivors by function with their diff and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from harness.core.wording import format_count
from harness.store.mutate.faults import MutationFault
from harness.store.mutate.values import FaultResult, MutationRun
from reports.mutate import view
from reports.mutate.view import MutationView
from reports.shared.terminal import (
    TONE_STYLES,
    print_diff,
    print_ending,
    print_tables,
    to_plain_text,
)

if TYPE_CHECKING:
    from rich.console import Console

MAX_FUNCTIONS = 40  # rows; the page has them all


def print_run(run: MutationRun, console: Console) -> None:
    mutation_view = view.make_view(run)

    def print_line(text: str, style: str) -> None:
        console.print(to_plain_text(text, style), soft_wrap=True)

    groups = (
        ("family", mutation_view.families),
        ("function", mutation_view.functions),
        ("operator", mutation_view.operators),
    )
    print_tables((view.make_score_table(*one) for one in groups), console, MAX_FUNCTIONS)
    print_survivors(mutation_view, console)
    for group in mutation_view.without_evidence:
        for result in group.results:
            print_fault(result.fault, result.diff, console, result)
            again = view.make_replay_command(mutation_view.run, result)
            print_line(f"  again: {again}", "dim")
    if mutation_view.without_evidence:
        print_line(f"No evidence: {view.NO_EVIDENCE_ADVICE}.", "dim")
    for group in mutation_view.unreached:
        reasons = "; ".join(dict.fromkeys(result.why for result in group.results))
        text = f"unreached: {len(group.results)} in {group.name}: {reasons}"
        print_line(text, TONE_STYLES["unreached"])
    if mutation_view.unreached:
        print_line(f"  {view.UNREACHED_ADVICE}", "dim")
    if run.elsewhere:
        print_line(run.elsewhere, "dim")
    for reason in run.left_out:
        print_line(f"not run: {reason}", "dim")
    if mutation_view.stand_ins:
        print_line(mutation_view.stand_ins, "dim")
    print_ending(console, run.green, view.describe_run(run), run.problems, run.id)


def print_survivors(mutation_view: MutationView, console: Console) -> None:
    for group in mutation_view.survivors:
        head = f"{format_count(len(group.results), 'survivor')} in {group.name}"
        console.print(to_plain_text(head, "bold"))
        for result in group.results:
            print_fault(result.fault, result.diff, console, result)
            for text in (
                f"  again: {view.make_replay_command(mutation_view.run, result)}",
                f"  as a toggle: {view.make_keep_command(mutation_view.run, result)}",
            ):
                console.print(to_plain_text(text, "dim"))
        console.print()
    if mutation_view.survivors:
        console.print(to_plain_text(f"A survivor: {view.SURVIVOR_ADVICE}.", "dim"), soft_wrap=True)


def print_fault(
    fault: MutationFault, diff: str, console: Console, outcome: FaultResult | None = None
) -> None:
    """Print one fault with its diff and, if it ran, its outcome."""
    head = f"{fault.id}  {fault.operator}  {fault.target}:{fault.line}  {fault.words}"
    if outcome is not None:
        mark = view.get_mark(outcome)
        console.print(Text(f"{mark.glyph} ", TONE_STYLES[mark.tone]), to_plain_text(head), sep="")
        console.print(to_plain_text(f"  {view.describe_outcome(outcome)}"), soft_wrap=True)
    else:
        console.print(to_plain_text(head, "bold"), soft_wrap=True)
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    print_diff(console, "\n".join(lines), "    ")
