"""The progress of a fuzzing run on stderr."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group
from rich.live import Live
from rich.text import Text

from harness.cli.progress_display import ProgressDisplay
from harness.runs.fuzz.messages import FuzzResult, RunFailure
from harness.runs.fuzz.release_search import FuzzRequest
from harness.runs.fuzz.runner import FuzzListener
from reports.fuzz import terminal


class FuzzProgress(ProgressDisplay, FuzzListener):
    """A listener that shows a table on a terminal, and lines in a log."""

    def __init__(self, request: FuzzRequest, save_run: Callable[[], None] = lambda: None) -> None:
        self.request = request
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

    def report_progress(self, run: FuzzResult) -> None:
        if self.is_watched:
            self.live.update(
                Group(
                    terminal.make_test_table(run),
                    Text(terminal.format_summary(run)),
                ),
                refresh=True,
            )
        else:
            self.log_occasionally(terminal.format_summary(run))

    def report_failure(self, failure: RunFailure) -> None:
        self.save_run()
        self.print_line(f"failed: {failure.repro.test} on SGLang {failure.repro.release}")
        self.print_line(f"    {failure.repro.headline}")
        self.print_line(f"    {failure.replay}")

    def report_problem(self, release: str, text: str) -> None:
        self.print_line(f"SGLang {release}: {text}")
