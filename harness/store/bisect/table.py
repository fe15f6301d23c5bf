"""The stored searches of `unfix bisect`. Each trial is written at its end."""

from __future__ import annotations

from typing import ClassVar

from harness.store.bisect.values import BisectSearch, BisectTrial
from harness.store.run_table import RunTable


class BisectTable(RunTable[BisectSearch, BisectSearch]):
    kind = "bisect"
    noun = "search"
    item_types: ClassVar = {"trials": BisectTrial}
    listed_type = BisectSearch

    def save_trial(self, search_id: str, number: int, trial: BisectTrial) -> None:
        self.save_item(
            *(search_id, "trials", trial),
            key=str(number),
            position=number,
            outcome=trial.answer.value,
            seconds=trial.seconds,
        )
