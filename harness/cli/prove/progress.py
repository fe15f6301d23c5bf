"""How a run goes, on stderr: a bar where somebody looks on, a line a release in a log."""

from __future__ import annotations

from rich.progress import TaskID

from harness.cli.watching import WithBars
from harness.prove.plan import Asked
from harness.prove.run import Teller
from harness.store.prove.values import Cell, OnRelease, Side


class Progress(WithBars, Teller):
    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        super().__init__()
        self.lines: dict[str, TaskID] = {}
        for target in asked.targets:
            words = f"SGLang {target.name}: importing"
            self.lines[target.name] = self.bar.add_task(words, total=None)

    def started(self, release: str) -> None:
        if self.bar.disable:
            self.say(f"SGLang {release}: importing")

    def met(self, on: OnRelease, cells: int, sides: int) -> None:
        words = f"SGLang {on.release} on {on.device}"
        if self.bar.disable:
            ready = f"ready in {on.seconds_to_start:.0f} s"
            self.say(f"{words}: {ready}; {cells} cells, {sides} tests to run")
        self.bar.update(self.lines[on.release], description=words, total=sides, completed=0)

    def ended(self, cell: Cell, side: Side) -> None:
        self.bar.advance(self.lines[cell.release])

    def judged(self, cell: Cell) -> None:
        if cell.verdict is not None and not cell.verdict.good:
            self.say(f"{cell.verdict.value}: {cell.toggle} on {cell.release}, {cell.guard}")
            self.say(f"    {cell.why}")

    def problem(self, release: str, text: str) -> None:
        self.say(f"SGLang {release}: {text}")
