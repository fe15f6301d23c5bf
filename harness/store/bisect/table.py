"""The searches of a store: each run of the command is written as it ends."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from harness.store.bisect.values import Search, Trial
from harness.store.file import as_text
from harness.store.table import Table
from harness.store.writers import me


class Searches(Table[Search, Search]):
    """What `unfix bisect` leaves behind."""

    noun = "search"
    tables: ClassVar = {"searches": "id", "trials": "search"}
    kind = Search

    def begin(self, search: Search) -> None:
        """A new search, or an old one that goes on; one that somebody else runs is refused."""
        with self.store.writing():
            self._not_running(search.id)
            self._keep(search, "running")
            # What it ran before is written again as it is met.

    def trial(self, search: str, number: int, trial: Trial) -> None:
        with self.store.writing():
            self.store.put("trials", search, number, as_text(trial))

    def end(self, search: Search) -> None:
        with self.store.writing():
            self._keep(search, search.status)

    def _keep(self, search: Search, status: str) -> None:
        bare = msgspec.structs.replace(search, trials=[])
        self.store.put(
            *("searches", search.id, search.kind, search.started, status, me()), as_text(bare)
        )

    def whole(self, run: Search) -> Search:
        query = "SELECT data FROM trials WHERE search = ? ORDER BY number"
        return msgspec.structs.replace(run, trials=self._decoded(Trial, query, [run.id]))
