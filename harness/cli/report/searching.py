"""The search of each new failure: one that is stored already, or one that is made now."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from harness import paths, stops
from harness.cli import kinds, options
from harness.history.searching import Fitting
from harness.store.bisect.values import Search
from harness.store.database import Store

UNFIX = (sys.executable, "-m", "harness")
STDERR = 2
BEAT = 0.2  # seconds between two looks at the clock
LEAST = 5.0  # seconds that are worth beginning with
TO_END = 30.0  # seconds a search has to keep what it found, and to end what it began


class Searches:
    """Looks a search up, or makes it as long as the budget lasts."""

    def __init__(self, store: Store, budget: float) -> None:
        self.store = store
        self.ends = time.monotonic() + budget
        self.budget = budget

    def told(self, fit: Fitting) -> str:
        """What is known of the fix, as Markdown."""
        if fit.why_not:
            return f"No search fits: {fit.why_not}."
        found = self._stored(fit)
        if found is None and self.budget:
            if self.ends - time.monotonic() < LEAST:
                return f"The budget of this night was used up. To search:\n\n{_command(fit)}"
            self._make(fit)
            found = self._stored(fit)
        if found is None:
            return f"Nobody has searched for it yet. To search:\n\n{_command(fit)}"
        return _quoted(found, fit)

    def _stored(self, fit: Fitting) -> Search | None:
        """The newest that is about it; one that came to its end before one that did not."""
        found = [search for search in self.store.bisect.all() if fit.answers(search)]
        done = [search for search in found if search.status == "finished"]
        ordered = [*(search for search in found if search not in done), *done]
        return ordered[-1] if ordered else None

    def _make(self, fit: Fitting) -> None:
        """`unfix bisect` as anybody calls it; what it found is in its store."""
        options.say(f"searching: {fit.line}")
        # Nothing is raised while the child starts, or nobody would know of it.
        with stops.noted() as told:
            child = subprocess.Popen(
                [*UNFIX, *fit.command],
                cwd=paths.project(),
                env={**os.environ, "PYTHONPATH": str(paths.PACKAGE.parent)},
                stdin=subprocess.DEVNULL,
                stdout=STDERR,  # our stdout is for the report
                start_new_session=True,
            )
            while child.poll() is None and not told and time.monotonic() < self.ends:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(BEAT)
            if child.poll() is None:
                why = "stopped" if told else "the budget is over"
                options.say(f"{why}: the search is ended, and what it found is kept")
            _end(child)
        self._take_in()
        if told:
            raise KeyboardInterrupt

    def _take_in(self) -> None:
        kept = Store()
        if kept.file.resolve() != self.store.file.resolve():
            self.store.bisect.merge(kept.bisect)
        kept.close()


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(TO_END)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _command(fit: Fitting) -> str:
    return f"```\n{fit.line}\n```"


def _quoted(search: Search, fit: Fitting) -> str:
    kinds.find_reports()
    from reports.shared.markdown import code, escaped

    if search.status == "finished":
        told = search.summary or search.verdict
        return f"{escaped(told)} (search {code(search.id)})\n\n{_command(fit)}"
    how = f"was {search.status}: {search.summary}" if search.summary else f"was {search.status}"
    going_on = f"./unfix bisect {search.kind} --resume {search.id}"
    return f"The search {code(search.id)} {escaped(how)}. To go on:\n\n```\n{going_on}\n```"
