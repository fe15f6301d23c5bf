"""How a matrix goes, on stderr: a bar where somebody looks on, and a line for what is not green."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from harness.matrix.values import Cell
from harness.store.matrices import Attempt, Outcome


class Progress:
    def __init__(self, total: int, done: int, cells: Iterable[Cell]) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.bar = Bar(
            TextColumn("unfix: {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self.task = self.bar.add_task("cells", total=total, completed=done)
        self.values = {cell.identity: cell.values for cell in cells}

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def ended(self, ended: Iterable[tuple[str, Attempt]]) -> None:
        for cell, attempt in ended:
            if attempt.last:
                self.bar.advance(self.task)
            if attempt.outcome is not Outcome.GREEN:
                self._say(cell, attempt)

    def _say(self, cell: str, attempt: Attempt) -> None:
        values = ", ".join(f"{axis} {value}" for axis, value in self.values[cell].items())
        again = "" if attempt.last else "; it is run again"
        text = f"{attempt.outcome.value}: {cell} ({values}): {attempt.how}{again}"
        self.console.print(f"unfix: {escape(text)}")
