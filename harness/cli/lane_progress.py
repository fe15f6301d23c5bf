"""The progress of a run in lanes: a bar on a terminal, lines in a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.cli.progress_display import ProgressBars
from harness.store.lane_runs import LaneRun
from harness.workers.lane_runner import LaneListener


class LaneProgress(ProgressBars, LaneListener):
    """Shows the import, the count of results, and what each of them brings that is red."""

    def __init__(self, run: LaneRun, noun: str, list_problems: Callable[[Any], list[str]]) -> None:
        super().__init__()
        self.noun, self.list_problems = noun, list_problems
        self.task = self.bar.add_task(f"SGLang {run.release}: importing", total=None)
        if self.bar.disable:
            self.print_line(f"SGLang {run.release} on a virtual GPU: importing")

    def report_import(self, seconds: float) -> None:
        self.print_line(f"imported in {seconds:.0f} s")

    def report_result(self, run: LaneRun, result: Any) -> None:
        done, planned = len(run.results), len(run.planned)
        self.bar.update(self.task, description=self.noun, completed=done, total=planned)
        for problem in self.list_problems(result):
            self.print_line(f"{result.name}: {problem}")
        if self.bar.disable:
            self.log_occasionally(f"{done} of {planned} {self.noun}")
