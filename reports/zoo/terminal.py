"""A zoo run on a terminal: the table of claims, then each failure with its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.store.zoo.values import ZooRun
from reports.shared.terminal import TONE_STYLES, print_ending, print_tables, to_plain_text
from reports.zoo import view

if TYPE_CHECKING:
    from rich.console import Console


def print_run(run: ZooRun, console: Console) -> None:
    print_tables([*view.make_tables(run), *view.make_feature_tables(run)], console)
    for result, claim in view.list_failures(run):
        style = TONE_STYLES[view.get_mark(claim).tone]
        text = f"{claim.verdict}: {result.name}: {claim.claim}: {claim.headline}"
        console.print(to_plain_text(text, style), soft_wrap=True)
    if stand_ins := view.describe_stand_ins(run):
        console.print(to_plain_text(stand_ins, "dim"), soft_wrap=True)
    other_rows = [
        problem
        for problem in run.problems
        if not any(problem.startswith(f"{result.name}: ") for result in run.present)
    ]
    print_ending(console, run.green, view.describe_run(run), other_rows, run.id)
