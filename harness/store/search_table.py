"""The searches of a store: each run of the command is written as it ends."""

from __future__ import annotations

import msgspec

from harness.errors import UnfixError
from harness.store.file import StoreFile, as_text
from harness.store.searches import Search, Trial
from harness.store.writers import alive, me


class Searches(StoreFile):
    """What `unfix bisect` leaves behind."""

    def begin_search(self, search: Search) -> None:
        """A new search, or an old one that goes on; one that somebody else runs is refused."""
        with self._writing():
            row = self._db.execute(
                "SELECT status, process FROM searches WHERE id = ?", (search.id,)
            ).fetchone()
            if row and row[0] == "running" and alive(row[1]):
                raise UnfixError(f"search {search.id} is still going on")
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
        with self._explained():
            rows = self._db.execute(
                "SELECT status, process, data FROM searches ORDER BY started, id"
            ).fetchall()
            found = []
            for status, process, data in rows:
                search = msgspec.json.decode(data, type=Search)
                gone = status == "running" and not alive(process)
                search.status = "stopped" if gone else status
                found.append(search)
        return found

    def find_search(self, name: str) -> Search | None:
        """A whole search, by its id or by how its id begins; None if there is none."""
        found = [search for search in self.searches() if search.id.startswith(name)]
        if not found:
            return None
        if len(found) > 1:
            raise UnfixError(f"{self.file} holds more than one search {name}")
        with self._explained():
            found[0].trials = [
                msgspec.json.decode(data, type=Trial)
                for (data,) in self._db.execute(
                    "SELECT data FROM trials WHERE search = ? ORDER BY number", (found[0].id,)
                )
            ]
        return found[0]

    def search(self, name: str) -> Search:
        found = self.find_search(name)
        if found is None:
            raise UnfixError(f"{self.file} holds no search {name}: `unfix report --list`")
        return found

    def merge_searches(self, other: Searches) -> None:
        """Take in those of another file that this one lacks, or has only a part of."""
        here = {search.id: search.status for search in self.searches()}
        for search in other.searches():
            if here.get(search.id) != "finished":
                with self._writing():
                    for table, key in (("searches", "id"), ("trials", "search")):
                        self._db.execute(f"DELETE FROM {table} WHERE {key} = ?", (search.id,))
                        rows = f"SELECT * FROM {table} WHERE {key} = ?"
                        for row in other._db.execute(rows, (search.id,)):
                            self._put(table, *row)
