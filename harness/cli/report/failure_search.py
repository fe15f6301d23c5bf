"""The `bisect` search of each new failure: a stored one, or a new one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

from harness.cli import options
from harness.core import child_process, paths, signals
from harness.core.outcomes import RunStatus
from harness.patching.child_environment import PYTHON_PATH_VARIABLE, ChildEnvironment
from harness.runs.history.search_suggestion import SuggestedSearch
from harness.store.bisect.table import BisectTable
from harness.store.bisect.values import BisectSearch
from harness.store.database import Store

UNFIX_COMMAND = (sys.executable, "-m", "harness")
STDERR_FD = 2
POLL_SECONDS = 0.2  # seconds between two polls
MIN_SEARCH_SECONDS = 5.0  # the least time for a search to begin
END_TIMEOUT = 30.0  # seconds for a search to store its result and end its processes


class FailureSearches:
    """The searches of failures: finds stored ones, and runs others within the budget."""

    def __init__(self, store: Store, budget: float) -> None:
        self.store = store
        self.deadline = time.monotonic() + budget
        self.budget = budget

    def describe_search(self, fit: SuggestedSearch) -> str:
        """Describe the search of a failure, as Markdown."""
        if fit.no_search_reason:
            return f"No search fits: {fit.no_search_reason}."
        found = self._find_stored_search(fit)
        if found is None and self.budget:
            if self.deadline - time.monotonic() < MIN_SEARCH_SECONDS:
                return f"The budget of this night was used up. To search:\n\n{_format_command(fit)}"
            self._run_search(fit)
            found = self._find_stored_search(fit)
        if found is None:
            return f"It was not searched for yet. To search:\n\n{_format_command(fit)}"
        return _format_search(found, fit)

    def _find_stored_search(self, fit: SuggestedSearch) -> BisectSearch | None:
        """Find the newest search of the failure; finished ones come first."""
        found = [
            search for search in BisectTable(self.store).list_runs() if fit.is_answered_by(search)
        ]
        done = [search for search in found if search.status is RunStatus.FINISHED]
        ordered = [*(search for search in found if search not in done), *done]
        return ordered[-1] if ordered else None

    def _run_search(self, fit: SuggestedSearch) -> None:
        """Run `unfix bisect` as a command; its result is in the store."""
        options.report_status(f"searching: {fit.command_line}")
        # A signal must not raise while the child starts, or the child would survive us.
        with signals.record_stop_signals() as stop_signals:
            child = subprocess.Popen(
                [*UNFIX_COMMAND, *fit.command],
                cwd=paths.project_folder(),
                env=ChildEnvironment({PYTHON_PATH_VARIABLE: str(paths.HARNESS_FOLDER.parent)}),
                stdin=subprocess.DEVNULL,
                stdout=STDERR_FD,  # our stdout is for the report
                start_new_session=True,
            )
            while child.poll() is None and not stop_signals and time.monotonic() < self.deadline:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_SECONDS)
            if child.poll() is None:
                why = "stopped" if stop_signals else "the budget is over"
                options.report_status(f"{why}: the search is ended, and what it found is kept")
            child_process.end_process_group(child, END_TIMEOUT, terminate=True)
        self._merge_search_store()
        if stop_signals:
            raise KeyboardInterrupt

    def _merge_search_store(self) -> None:
        default_store = Store()
        if default_store.file.resolve() != self.store.file.resolve():
            BisectTable(self.store).merge(BisectTable(default_store))
        default_store.close()


def _format_command(fit: SuggestedSearch) -> str:
    return f"```\n{fit.command_line}\n```"


def _format_search(search: BisectSearch, fit: SuggestedSearch) -> str:
    from reports.shared.markdown import escape_text, render_code

    if search.status is RunStatus.FINISHED:
        summary = escape_text(search.summary or search.verdict)
        return f"{summary} (search {render_code(search.id)})\n\n{_format_command(fit)}"
    how = f"was {search.status}: {search.summary}" if search.summary else f"was {search.status}"
    going_on = f"./unfix bisect {search.kind} --resume {search.id}"
    return (
        f"The search {render_code(search.id)} {escape_text(how)}. To go on:\n\n```\n{going_on}\n```"
    )
