"""The searches of a store: each run of the command is written as it ends."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from harness.store.bisect.values import BisectSearch, BisectTrial
from harness.store.run_table import RunTable
from harness.store.sqlite_file import encode_json
from harness.store.writer_process import identify_this_process


class BisectTable(RunTable[BisectSearch, BisectSearch]):
    """What `unfix bisect` leaves behind."""

    noun = "search"
    tables: ClassVar = {"searches": "id", "trials": "search"}
    listed_type = BisectSearch

    def begin(self, search: BisectSearch) -> None:
        """A new search, or an old one that goes on; one that somebody else runs is refused."""
        with self.store.write_transaction():
            self._refuse_if_running(search.id)
            self._save_search(search, "running")
            # What it ran before is written again as it is met.

    def save_trial(self, search: str, number: int, trial: BisectTrial) -> None:
        with self.store.write_transaction():
            self.store.replace_row("trials", search, number, encode_json(trial))

    def end(self, search: BisectSearch) -> None:
        with self.store.write_transaction():
            self._save_search(search, search.status)

    def _save_search(self, search: BisectSearch, status: str) -> None:
        bare = msgspec.structs.replace(search, trials=[])
        self.store.replace_row(
            *("searches", search.id, search.kind, search.started, status, identify_this_process()),
            encode_json(bare),
        )

    def load_whole(self, run: BisectSearch) -> BisectSearch:
        query = "SELECT data FROM trials WHERE search = ? ORDER BY number"
        return msgspec.structs.replace(run, trials=self._decode_rows(BisectTrial, query, [run.id]))
