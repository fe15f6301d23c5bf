"""The mutation runs of a store: each fault's fate is written as it falls."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from harness.store.mutate.values import FaultResult, MutationRun
from harness.store.run_table import RunTable
from harness.store.sqlite_file import encode_json
from harness.store.writer_process import identify_this_process


class MutationTable(RunTable[MutationRun, MutationRun]):
    """What `unfix mutate` leaves behind."""

    noun = "mutation run"
    tables: ClassVar = {"mutations": "id", "fates": "run"}
    listed_type = MutationRun

    def begin(self, mutation: MutationRun) -> None:
        """A new run, or an old one that goes on; one that somebody else runs is refused."""
        with self.store.write_transaction():
            self._refuse_if_running(mutation.id)
            self._save_run(mutation, "running")

    def save_result(self, mutation: str, number: int, result: FaultResult) -> None:
        with self.store.write_transaction():
            self.store.replace_row(
                "fates", mutation, result.fault.id, number, result.fate.value, encode_json(result)
            )

    def end(self, mutation: MutationRun) -> None:
        with self.store.write_transaction():
            self._save_run(mutation, mutation.status)

    def _save_run(self, mutation: MutationRun, status: str) -> None:
        bare = msgspec.structs.replace(mutation, fates=[])
        self.store.replace_row(
            "mutations",
            mutation.id,
            mutation.started,
            status,
            identify_this_process(),
            encode_json(bare),
        )

    def load_whole(self, run: MutationRun) -> MutationRun:
        query = "SELECT data FROM fates WHERE run = ? ORDER BY number"
        return msgspec.structs.replace(run, fates=self._decode_rows(FaultResult, query, [run.id]))

    def load_result(self, mutation: str, fault: str) -> FaultResult:
        """One fault of a run."""
        query = "SELECT data FROM fates WHERE run = ? AND fault = ?"
        (found,) = self._decode_rows(FaultResult, query, [mutation, fault])
        return found  # type: ignore[no-any-return]
