"""How a fuzzing run goes, on stderr."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group
from rich.live import Live
from rich.text import Text

from harness.cli import kinds
from harness.cli.watching import Watching
from harness.fuzz.lanes import Asked
from harness.fuzz.run import Teller
from harness.fuzz.values import Fuzzed, Kept


class Progress(Watching, Teller):
    """A table where somebody looks on, lines in a log."""

    def __init__(self, asked: Asked, keep: Callable[[], None] = lambda: None) -> None:
        self.asked = asked
        self.shown = kinds.report("fuzz", "terminal")
        self.keep = keep
        super().__init__()
        self.live = Live(console=self.console, transient=True, auto_refresh=False)
        self.watched = self.console.is_terminal
        self.moving = self.live if self.watched else None

    def started(self, release: str) -> None:
        self.say(f"SGLang {release}: importing")

    def met(self, release: str, tests: int, left_out: int, seconds: float) -> None:
        out = f", {left_out} left out" if left_out else ""
        self.say(f"SGLang {release}: ready in {seconds:.0f} s; {tests} tests{out}")

    def moved(self, run: Fuzzed) -> None:
        if self.watched:
            self.live.update(Group(self.shown.table(run), Text(self.shown.line(run))), refresh=True)
        else:
            self.log(self.shown.line(run))

    def failed(self, kept: Kept) -> None:
        self.keep()
        self.say(f"failed: {kept.repro.test} on SGLang {kept.repro.release}")
        self.say(f"    {kept.repro.headline}")
        self.say(f"    {kept.replay}")

    def problem(self, release: str, text: str) -> None:
        self.say(f"SGLang {release}: {text}")
