"""The progress of a fuzzing run on stderr."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group
from rich.live import Live
from rich.text import Text

from harness.cli.progress_display import ProgressDisplay
from harness.runs.fuzz.recorded_search import FuzzListener
from harness.store.fuzz.values import FuzzRun, RunFailure
from reports.fuzz import view
from reports.shared.terminal import to_rich_table

MAX_ROWS = 12  # tests in the table of a terminal


class FuzzProgress(ProgressDisplay, FuzzListener):
    """A listener that shows a table on a terminal, and lines in a log."""

    def __init__(self, save_run: Callable[[], None] = lambda: None) -> None:
        self.save_run = save_run
        super().__init__()
        self.live = Live(console=self.console, transient=True, auto_refresh=False)
        self.is_watched = self.console.is_terminal
        self.live_display = self.live if self.is_watched else None

    def report_release_started(self, release: str) -> None:
        self.print_line(f"SGLang {release}: importing")

    def report_collected(self, release: str, tests: int, excluded: int, seconds: float) -> None:
        out = f", {excluded} left out" if excluded else ""
        self.print_line(f"SGLang {release}: ready in {seconds:.0f} s; {tests} tests{out}")

    def report_progress(self, run: FuzzRun) -> None:
        if self.is_watched:
            self.live.update(
                Group(
                    to_rich_table(view.make_test_table(run), MAX_ROWS),
                    Text(view.describe_run(run)),
                ),
                refresh=True,
            )
        else:
            self.log_occasionally(f"so far {view.describe_run(run)}")

    def report_failure(self, failure: RunFailure) -> None:
        self.save_run()
        self.print_line(f"failed: {failure.repro.test} on SGLang {failure.repro.release}")
        self.print_line(f"    {failure.repro.headline}")
        self.print_line(f"    {failure.replay}")

    def report_problem(self, release: str, text: str) -> None:
        self.print_line(f"SGLang {release}: {text}")
