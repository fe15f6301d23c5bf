"""How a matrix goes, on stderr: a bar where somebody looks on, and a line for what is not green."""

from __future__ import annotations

from collections.abc import Iterable

from harness.cli.watching import WithBars
from harness.matrix.values import Cell
from harness.store.matrix.values import Attempt, Outcome


class Progress(WithBars):
    def __init__(self, total: int, done: int, cells: Iterable[Cell]) -> None:
        super().__init__()
        self.task = self.bar.add_task("cells", total=total, completed=done)
        self.values = {cell.identity: cell.values for cell in cells}

    def ended(self, ended: Iterable[tuple[str, Attempt]]) -> None:
        for cell, attempt in ended:
            if attempt.last:
                self.bar.advance(self.task)
            if attempt.outcome is not Outcome.GREEN:
                self._failed(cell, attempt)

    def _failed(self, cell: str, attempt: Attempt) -> None:
        values = ", ".join(f"{axis} {value}" for axis, value in self.values[cell].items())
        again = "" if attempt.last else "; it is run again"
        text = f"{attempt.outcome.value}: {cell} ({values}): {attempt.how}{again}"
        self.say(text)
