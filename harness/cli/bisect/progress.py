"""The progress of a search on stderr, one line per run."""

from __future__ import annotations

from harness.cli.progress_display import ProgressDisplay
from harness.core.wording import format_count
from harness.runs.bisect.search_driver import SearchListener
from harness.store.bisect.values import BisectTrial, ToggleSearch


class BisectProgress(ProgressDisplay, SearchListener):
    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, ToggleSearch] = {}

    def report_part(self, part: ToggleSearch, usual_runs: int) -> None:
        self.parts[part.name] = part
        verb = "taken out" if part.direction == "revert" else "put in"
        end = f"; one culprit takes about {format_count(usual_runs, 'run')}" if usual_runs else ""
        self.print_line(
            f"SGLang {part.where}: {format_count(len(part.toggles), 'toggle')} can be {verb}{end}"
        )

    def report_trial(self, trial: BisectTrial, number: int) -> None:
        part = self.parts.get(trial.search_name)
        where = "" if part else f" on {trial.where}"
        names = trial.toggles
        count = (
            f"{len(names)} of {len(part.toggles)}" if part else format_count(len(names), "toggle")
        )
        what = "nothing toggled" if not names else names[0] if len(names) == 1 else count
        proof = ", proof" if trial.why == "proof" else ""
        self.print_line(f"run {number}{where}, {what}{proof}: {trial.answer.value} ({trial.how})")
