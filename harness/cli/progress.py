"""How a run goes, on stderr: a bar where somebody looks on, a line a release in a log."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from harness.prove.plan import Asked
from harness.prove.run import Teller
from harness.store.records import Cell, OnRelease, Side


class Progress(Teller):
    def __init__(self, asked: Asked) -> None:
        self.asked = asked
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
        self.lines: dict[str, TaskID] = {}
        for target in asked.targets:
            words = f"SGLang {target.name}: importing"
            self.lines[target.name] = self.bar.add_task(words, total=None)

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

    def _say(self, text: str) -> None:
        self.console.print(f"unfix: {escape(text)}")

    def started(self, release: str) -> None:
        if self.bar.disable:
            self._say(f"SGLang {release}: importing")

    def met(self, on: OnRelease, cells: int, sides: int) -> None:
        words = f"SGLang {on.release} on {on.device}"
        if self.bar.disable:
            ready = f"ready in {on.seconds_to_start:.0f} s"
            self._say(f"{words}: {ready}; {cells} cells, {sides} tests to run")
        self.bar.update(self.lines[on.release], description=words, total=sides, completed=0)

    def ended(self, cell: Cell, side: Side) -> None:
        self.bar.advance(self.lines[cell.release])

    def judged(self, cell: Cell) -> None:
        if cell.verdict is not None and not cell.verdict.good:
            self._say(f"{cell.verdict.value}: {cell.toggle} on {cell.release}, {cell.guard}")
            self._say(f"    {cell.why}")

    def problem(self, release: str, text: str) -> None:
        self._say(f"SGLang {release}: {text}")
