"""The progress of a run on stderr: bars on a terminal, a line for each release in a log."""

from __future__ import annotations

from rich.progress import TaskID

from harness.cli.progress_display import ProgressBars
from harness.core.wording import format_count, format_duration
from harness.runs.prove.plan import ProveRequest
from harness.runs.prove.release_pool import ProveListener
from harness.store.prove.values import CellResult, ReleaseFacts, SideResult

SECONDS_PER_BUILD = 15.0  # of a core that does nothing else, as measured


class ProveProgress(ProgressBars, ProveListener):
    def __init__(self, request: ProveRequest) -> None:
        self.request = request
        super().__init__()
        self.task_ids: dict[tuple[str, str], TaskID] = {}
        for target in request.targets:
            for part in request.split_by_device():
                words = f"SGLang {target.name} on {part.device}: waits for its turn"
                task = self.bar.add_task(words, start=False, total=None)
                self.task_ids[target.name, part.device] = task

    def report_release_start(self, release: str, device: str) -> None:
        words = f"SGLang {release} on {device}: importing"
        if self.bar.disable:
            self.print_line(words)
        task = self._find_task(release, device)
        self.bar.start_task(task)
        self.bar.update(task, description=words)

    def report_release_collected(self, facts: ReleaseFacts, cells: int, sides: int) -> None:
        words = f"SGLang {facts.release} on {facts.device}"
        if self.bar.disable:
            ready = f"ready in {facts.seconds_to_start:.0f} s"
            self.print_line(
                f"{words}: {ready}; {format_count(cells, 'cell')}, "
                f"{format_count(sides, 'test')} to run"
            )
        task = self._find_task(facts.release, facts.device)
        self.bar.update(task, description=words, total=sides, completed=0)

    def _find_task(self, release: str, device: str) -> TaskID:
        """Find the bar of a part; a worker may find another device than it was asked for."""
        return self.task_ids.get((release, device), self.task_ids[release, self.request.device])

    def report_side(self, cell: CellResult, result: SideResult) -> None:
        self.bar.advance(self._find_task(cell.release, cell.device))

    def report_verdict(self, cell: CellResult) -> None:
        if cell.verdict is not None and not cell.verdict.is_good:
            self.print_line(f"{cell.verdict.value}: {cell.toggle} on {cell.release}, {cell.guard}")
            self.print_line(f"    {cell.why}")

    def report_builds(self, release: str, built: int, count: int) -> None:
        key = release, "builds"
        if key not in self.task_ids:
            words = f"CUDA modules of SGLang {release}, built once"
            needed = format_duration(SECONDS_PER_BUILD * count / self.request.jobs)
            self.print_line(f"{words}: {count}, about {needed}, while guards without them run")
            self.task_ids[key] = self.bar.add_task(words, total=count)
        self.bar.update(self.task_ids[key], completed=built)

    def report_problem(self, release: str, text: str) -> None:
        self.print_line(f"SGLang {release}: {text}")
