"""An evaluation on a terminal: three tables, and one line in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from harness.store.eval.values import Evaluation
from reports.eval import view
from reports.eval.view import EvalView
from reports.shared import formatting
from reports.shared.formatting import ReportMark
from reports.shared.terminal import TONE_STYLES, to_plain_text
from reports.shared.terminal import make_table as columns

if TYPE_CHECKING:
    from rich.console import Console

MAX_PROBLEMS = 20


def print_run(evaluation: Evaluation, console: Console) -> None:
    seen = view.make_view(evaluation)
    for table in (
        make_configuration_table(seen),
        make_comparison_table(seen),
        make_fault_table(seen),
    ):
        if table.row_count:
            console.print(table)
            console.print()
    console.print(format_summary(seen), soft_wrap=True)


def make_configuration_table(eval_view: EvalView) -> Table:
    """A column that would be empty takes no room."""
    rows = eval_view.configurations
    numbers = {
        "errors": [str(row.errors or "") for row in rows],
        "accepted": [row.accepted_text for row in rows],
        "ready": [row.ready_text for row in rows],
    }
    numbers = {head: cells for head, cells in numbers.items() if any(cells)}
    table = columns("configuration", "", "model", "release")
    for head in (*(formatting.to_single_line(task, 30) for task in eval_view.tasks), *numbers):
        table.add_column(to_plain_text(head), justify="right", no_wrap=True)
    table.add_column("to know", overflow="fold")
    for place, row in enumerate(rows):
        table.add_row(
            to_plain_text(row.name),
            _format_mark(row.mark, row.tone),
            to_plain_text(formatting.to_single_line(row.served.model)),
            to_plain_text(formatting.to_single_line(row.served.release)),
            *(
                row.scores[task].score_text if task in row.scores else ""
                for task in eval_view.tasks
            ),
            *(cells[place] for cells in numbers.values()),
            to_plain_text(row.remarks, "dim"),
        )
    return table


def make_comparison_table(eval_view: EvalView) -> Table:
    table = columns("base → candidate", "of", "task", "verdict")
    table.add_column("drop, or\ndivergence / noise")
    table.add_column("items")
    for row in eval_view.comparisons:
        fault = Text(" fault", style="dim") if row.has_planted_fault else Text()
        table.add_row(
            to_plain_text(row.pair_label),
            to_plain_text(formatting.to_single_line(row.comparison.kind, 20)),
            to_plain_text(row.task),
            _format_mark(row.mark, row.tone) + fault,
            to_plain_text(row.measure),
            to_plain_text(row.counts_text, "dim"),
        )
    return table


def make_fault_table(eval_view: EvalView) -> Table:
    table = columns("fault", "configuration", "", "by", "the user sees", "its code ran")
    for row in eval_view.faults:
        table.add_row(
            to_plain_text(formatting.to_single_line(row.fault.toggle)),
            to_plain_text(formatting.to_single_line(row.fault.configuration)),
            _format_mark(row.mark, row.mark.tone),
            to_plain_text(row.detected_by),
            to_plain_text(formatting.to_single_line(row.fault.user_sees)),
            row.reach_text,
        )
    return table


def format_summary(eval_view: EvalView) -> Text:
    """'40 same, 8 equal, 5 of 5 faults caught, cpu, in 73 s: green', or why not."""
    said = [f"{number} {mark.word}" for mark, number in eval_view.counts] or ["no comparisons"]
    said += [eval_view.caught_summary] if eval_view.faults else []
    said += [
        eval_view.evaluation.device,
        f"in {formatting.format_duration(eval_view.evaluation.seconds)}",
    ]
    line = to_plain_text(formatting.to_single_line(", ".join(said), 400) + ": ")
    if eval_view.green:
        return line.append("green", style="bold green")
    line.append("red", style="bold red")
    for problem in eval_view.problems[:MAX_PROBLEMS]:
        line.append("\n  ").append_text(to_plain_text(problem, "red"))
    if len(eval_view.problems) > MAX_PROBLEMS:
        line.append(f"\n  and {len(eval_view.problems) - MAX_PROBLEMS} more", style="red")
    return line


def _format_mark(mark: ReportMark, tone: str) -> Text:
    return Text(mark.word, style=TONE_STYLES[tone])
