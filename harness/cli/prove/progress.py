"""The progress of a run on stderr: bars on a terminal, a line for each release in a log."""

from __future__ import annotations

from rich.progress import TaskID

from harness.cli.progress_display import ProgressBars
from harness.runs.prove.plan import ProveRequest
from harness.runs.prove.release_pool import ProveListener
from harness.store.prove.values import CellResult, ReleaseFacts, SideResult


class ProveProgress(ProgressBars, ProveListener):
    def __init__(self, request: ProveRequest) -> None:
        self.request = request
        super().__init__()
        self.task_ids: dict[str, TaskID] = {}
        for target in request.targets:
            words = f"SGLang {target.name}: importing"
            self.task_ids[target.name] = self.bar.add_task(words, total=None)

    def report_release_start(self, release: str) -> None:
        if self.bar.disable:
            self.print_line(f"SGLang {release}: importing")

    def report_release_collected(self, facts: ReleaseFacts, cells: int, sides: int) -> None:
        words = f"SGLang {facts.release} on {facts.device}"
        if self.bar.disable:
            ready = f"ready in {facts.seconds_to_start:.0f} s"
            self.print_line(f"{words}: {ready}; {cells} cells, {sides} tests to run")
        self.bar.update(self.task_ids[facts.release], description=words, total=sides, completed=0)

    def report_side(self, cell: CellResult, result: SideResult) -> None:
        self.bar.advance(self.task_ids[cell.release])

    def report_verdict(self, cell: CellResult) -> None:
        if cell.verdict is not None and not cell.verdict.is_good:
            self.print_line(f"{cell.verdict.value}: {cell.toggle} on {cell.release}, {cell.guard}")
            self.print_line(f"    {cell.why}")

    def report_problem(self, release: str, text: str) -> None:
        self.print_line(f"SGLang {release}: {text}")
