"""The searches of a store: each run of the command is written as it ends."""

from __future__ import annotations

import msgspec

from harness.errors import UnfixError
from harness.store.bisect.values import Search, Trial
from harness.store.file import as_text
from harness.store.rows import RunTables
from harness.store.writers import me

TABLES = {"searches": "id", "trials": "search"}


class Searches(RunTables):
    """What `unfix bisect` leaves behind."""

    def begin_search(self, search: Search) -> None:
        """A new search, or an old one that goes on; one that somebody else runs is refused."""
        with self._writing():
            self._not_running("searches", search.id, "search")
            self._keep(search, "running")
            # What it ran before is written again as it is met.

    def trial(self, search: str, number: int, trial: Trial) -> None:
        with self._writing():
            self._put("trials", search, number, as_text(trial))

    def end_search(self, search: Search) -> None:
        with self._writing():
            self._keep(search, search.status)

    def _keep(self, search: Search, status: str) -> None:
        bare = msgspec.structs.replace(search, trials=[])
        self._put(
            *("searches", search.id, search.kind, search.started, status, me()), as_text(bare)
        )

    def searches(self) -> list[Search]:
        """Every search without its runs, the oldest first."""
        return self._runs_of("searches", Search)

    def find_search(self, name: str) -> Search | None:
        """A whole search, by its id or by how its id begins; None if there is none."""
        found = self._named(self.searches(), name, "search")
        if found is None:
            return None
        with self._explained():
            found.trials = [
                msgspec.json.decode(data, type=Trial)
                for (data,) in self._db.execute(
                    "SELECT data FROM trials WHERE search = ? ORDER BY number", (found.id,)
                )
            ]
        return found

    def search(self, name: str) -> Search:
        found = self.find_search(name)
        if found is None:
            raise UnfixError(f"{self.file} holds no search {name}: `unfix report --list`")
        return found

    def merge_searches(self, other: Searches) -> None:
        self._merge(other, TABLES, self.searches(), other.searches())
