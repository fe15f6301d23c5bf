"""A mutation run on a terminal: the scores, then survivors by function with their diff and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from harness.store.mutate.faults import Fault
from harness.store.mutate.values import Fated, Mutation
from reports.mutate import view
from reports.mutate.view import MARKS, MutationView, Share
from reports.shared.terminal import STYLES, plain

if TYPE_CHECKING:
    from rich.console import Console

DIFF = {"+": "green", "-": "red", "@": "cyan"}
FUNCTIONS = 40  # rows; the page has them all


def show(run: Mutation, console: Console) -> None:
    seen = view.make(run)
    if run.fates:
        scores("family", seen.families, console)
        scores("function", seen.functions[:FUNCTIONS], console)
        scores("operator", seen.operators, console)
    survivors(seen, console)
    for share in seen.unreached:
        words = "; ".join(dict.fromkeys(fated.why for fated in share.fates))
        told = f"unreached: {len(share.fates)} in {share.name}: {words}"
        console.print(plain(told, STYLES["unreached"]), soft_wrap=True)
    if seen.unreached:
        console.print(plain(f"  {view.UNASKED}", "dim"), soft_wrap=True)
    if run.elsewhere:
        console.print(plain(run.elsewhere, "dim"), soft_wrap=True)
    for told in run.left_out:
        console.print(plain(f"not asked: {told}", "dim"), soft_wrap=True)
    for problem in run.problems:
        console.print(plain(f"red: {problem}", "bold red"), soft_wrap=True)
    colour = "green" if run.green else "bold red"
    verdict = "green" if run.green else "red"
    console.print(Text.assemble((verdict, colour), "  ", plain(view.sentence(run))), soft_wrap=True)
    console.print(plain(f"again: unfix report {run.id}", "dim"))


def scores(title: str, shares: list[Share], console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column(title, overflow="fold")
    table.add_column("killed of reached", justify="right")
    for word, mark in MARKS.items():
        table.add_column(f"{mark.glyph} {word}", justify="right")
    for share in shares:
        counts = [str(count) if count else "" for count in share.counts.values()]
        style = STYLES["toothless"] if share.counts["survived"] else ""
        table.add_row(plain(share.name), plain(share.told, style), *counts)
    console.print(table)
    console.print()


def survivors(seen: MutationView, console: Console) -> None:
    for share in seen.survivors:
        many = "s" if len(share.fates) > 1 else ""
        console.print(plain(f"{len(share.fates)} survivor{many} in {share.name}", "bold"))
        for fated in share.fates:
            fault(fated.fault, fated.diff, console, fated)
            console.print(plain(f"  again: {view.again(seen.run, fated)}", "dim"))
            console.print(plain(f"  as a toggle: {view.keep(seen.run, fated)}", "dim"))
        console.print()
    if seen.survivors:
        console.print(plain(f"A survivor: {view.UNSEEN}.", "dim"), soft_wrap=True)


def fault(fault: Fault, diff: str, console: Console, fated: Fated | None = None) -> None:
    """One fault with its diff and, if it has one, its fate."""
    head = f"{fault.id}  {fault.operator}  {fault.target}:{fault.line}  {fault.words}"
    if fated is not None:
        mark = view.mark(fated)
        console.print(Text(f"{mark.glyph} ", STYLES[mark.tone]), plain(head), sep="")
        console.print(plain(f"  {view.why(fated)}"), soft_wrap=True)
    else:
        console.print(plain(head, "bold"), soft_wrap=True)
    for line in diff.splitlines():
        if not line.startswith(("---", "+++")):
            console.print(plain(f"    {line}", DIFF.get(line[:1], "")), soft_wrap=True)
