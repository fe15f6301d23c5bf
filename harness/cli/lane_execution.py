"""A run in lanes as a command has it: started, shown (a bar, or lines in a log), and ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.cli.process_cleanup import end_processes_on_exit
from harness.cli.progress_display import ProgressBars
from harness.core import machine, paths
from harness.runs.rehearse.request import RehearseRequest
from harness.runs.zoo.request import ZooRequest
from harness.store.lane_runs import LaneRun, LaneRunT, LaneRunTable
from harness.workers.lane_process import LaneProcess
from harness.workers.lane_runner import LaneListener, LaneRunner
from harness.workers.release_target import ReleaseTarget


class LaneProgress(ProgressBars, LaneListener):
    """Shows the import, the count of results, and what each of them brings that is red."""

    def __init__(
        self, run: LaneRun, noun: str, list_problems: Callable[[Any], Sequence[str]]
    ) -> None:
        super().__init__()
        self.run, self.noun, self.list_problems = run, noun, list_problems
        self.task = self.bar.add_task(f"SGLang {run.release}: importing", total=None)
        if self.bar.disable:
            self.print_line(f"SGLang {run.release} on a virtual GPU: importing")

    def report_import(self, seconds: float) -> None:
        self.print_line(f"imported in {seconds:.0f} s")
        self.bar.update(self.task, description=self.noun, total=len(self.run.planned))

    def report_result(self, run: LaneRun, result: Any) -> None:
        done, planned = len(run.results), len(run.planned)
        self.bar.update(self.task, description=self.noun, completed=done, total=planned)
        for problem in self.list_problems(result):
            self.print_line(f"{result.name}: {problem}")


def execute_in_lanes(
    run: LaneRunT,
    target: ReleaseTarget,
    module: str,
    request: ZooRequest | RehearseRequest,
    make_work: Callable[[Path], msgspec.Struct],
    table: LaneRunTable[LaneRunT],
    noun: str,
    list_problems: Callable[[Any], Sequence[str]],
) -> None:
    """Run the items of a run in a worker of its release, to the end or until Ctrl-C."""
    folder = paths.state_folder() / "runs" / run.id
    worker = LaneProcess(target, module, folder, request.revert, request.enable, request.toggles)
    run.toggles = [f"-{name}" for name in request.revert]
    run.toggles += [f"+{name}" for name in request.enable]
    facts = machine.collect_machine_facts(str(target.python))
    run.versions, run.machine = facts.pop("versions"), facts
    with (
        contextlib.suppress(KeyboardInterrupt),
        end_processes_on_exit(),
        LaneProgress(run, noun, list_problems) as progress,
    ):
        LaneRunner(worker, run, table, progress).execute(make_work(folder))
