"""An evaluation on a terminal: three tables, and one line in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from harness.store.eval.values import Evaluation
from reports.eval import view
from reports.eval.view import EvalView
from reports.shared import texts
from reports.shared.terminal import STYLES, plain
from reports.shared.terminal import table as columns
from reports.shared.texts import Mark

if TYPE_CHECKING:
    from rich.console import Console

PROBLEMS = 20


def show(evaluation: Evaluation, console: Console) -> None:
    seen = view.make(evaluation)
    for table in (configurations(seen), comparisons(seen), faults(seen)):
        if table.row_count:
            console.print(table)
            console.print()
    console.print(summary(seen), soft_wrap=True)


def configurations(seen: EvalView) -> Table:
    """A column that would be empty takes no room."""
    rows = seen.configurations
    numbers = {
        "errors": [str(row.errors or "") for row in rows],
        "accepted": [row.accepted for row in rows],
        "ready": [row.ready for row in rows],
    }
    numbers = {head: cells for head, cells in numbers.items() if any(cells)}
    table = columns("configuration", "", "model", "release")
    for head in (*(texts.line(task, 30) for task in seen.tasks), *numbers):
        table.add_column(plain(head), justify="right", no_wrap=True)
    table.add_column("to know", overflow="fold")
    for place, row in enumerate(rows):
        table.add_row(
            plain(row.name),
            _mark(row.mark, row.tone),
            plain(texts.line(row.served.model)),
            plain(texts.line(row.served.release)),
            *(row.scores[task].told if task in row.scores else "" for task in seen.tasks),
            *(cells[place] for cells in numbers.values()),
            plain(row.told, "dim"),
        )
    return table


def comparisons(seen: EvalView) -> Table:
    table = columns("base → candidate", "of", "task", "verdict")
    table.add_column("drop, or\ndivergence / noise")
    table.add_column("items")
    for row in seen.pairings:
        fault = Text(" fault", style="dim") if row.meant else Text()
        table.add_row(
            plain(row.names),
            plain(texts.line(row.compared.kind, 20)),
            plain(row.task),
            _mark(row.mark, row.tone) + fault,
            plain(row.measure),
            plain(row.counts, "dim"),
        )
    return table


def faults(seen: EvalView) -> Table:
    table = columns("fault", "configuration", "", "by", "the user sees", "its code ran")
    for row in seen.faults:
        table.add_row(
            plain(texts.line(row.fault.toggle)),
            plain(texts.line(row.fault.configuration)),
            _mark(row.mark, row.mark.tone),
            plain(row.by),
            plain(texts.line(row.fault.user_sees)),
            row.ran,
        )
    return table


def summary(seen: EvalView) -> Text:
    """'40 same, 8 equal, 5 of 5 faults caught, cpu, in 73 s: green', or why not."""
    said = [f"{number} {mark.word}" for mark, number in seen.counts] or ["no comparisons"]
    said += [seen.noticed] if seen.faults else []
    said += [seen.evaluation.device, f"in {texts.duration(seen.evaluation.seconds)}"]
    line = plain(texts.line(", ".join(said), 400) + ": ")
    if seen.green:
        return line.append("green", style="bold green")
    line.append("red", style="bold red")
    for problem in seen.problems[:PROBLEMS]:
        line.append("\n  ").append_text(plain(problem, "red"))
    if len(seen.problems) > PROBLEMS:
        line.append(f"\n  and {len(seen.problems) - PROBLEMS} more", style="red")
    return line


def _mark(mark: Mark, tone: str) -> Text:
    return Text(mark.word, style=STYLES[tone])
