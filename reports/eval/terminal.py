"""An evaluation on a terminal: three tables, and one line in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.wording import format_duration
from harness.store.eval.values import Evaluation
from reports.eval import tables, view
from reports.shared import formatting
from reports.shared.terminal import append_verdict, print_tables, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_PROBLEMS = 20


def print_run(evaluation: Evaluation, console: Console) -> None:
    """Print the last line: '40 same, 5 of 5 faults caught, cpu, in 73 s: green', or problems."""
    eval_view = view.make_view(evaluation)
    print_tables(tables.make_tables(eval_view), console)
    for stand_ins in eval_view.stand_in_lines:
        console.print(to_plain_text(stand_ins, "dim"), soft_wrap=True)
    facts = [eval_view.counts_text, evaluation.device, f"in {format_duration(evaluation.seconds)}"]
    line = to_plain_text(formatting.to_single_line(", ".join(facts), 400) + ": ")
    line = append_verdict(line, eval_view.green, eval_view.problems, MAX_PROBLEMS)
    console.print(line, soft_wrap=True)
