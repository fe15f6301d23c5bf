"""The fuzzing runs of a store: each is written whole, again and again as it grows."""

from __future__ import annotations

import msgspec

from harness.store.file import StoreFile, as_text
from harness.store.fuzzings import FuzzRun
from harness.store.writers import alive, me


class Fuzzings(StoreFile):
    """What `unfix fuzz` leaves behind, its examples and files apart."""

    def save_fuzzing(self, run: FuzzRun) -> None:
        with self._writing():
            self._put("fuzzings", run.id, run.started, run.status, me(), as_text(run))

    def fuzzings(self) -> list[FuzzRun]:
        """Every run, the oldest first."""
        with self._explained():
            rows = self._db.execute(
                "SELECT status, process, data FROM fuzzings ORDER BY started, id"
            ).fetchall()
            found = []
            for status, process, data in rows:
                run = msgspec.json.decode(data, type=FuzzRun)
                gone = status == "running" and not alive(process)
                run.status = "stopped" if gone else status
                found.append(run)
        return found

    def merge_fuzzings(self, other: Fuzzings) -> None:
        """Take in those of another file that this one lacks, or has only a part of."""
        here = {run.id: run.status for run in self.fuzzings()}
        for run in other.fuzzings():
            if here.get(run.id) != "finished":
                with self._writing():
                    rows = other._db.execute("SELECT * FROM fuzzings WHERE id = ?", (run.id,))
                    for row in rows.fetchall():
                        self._put("fuzzings", *row)
