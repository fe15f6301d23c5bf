"""What somebody who looks on sees of a run while it goes, on stderr."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

EVERY = 30.0  # seconds between two lines in a log


class Watching:
    """Something that moves on a terminal while a block lasts, and lines above it."""

    moving: Progress | Live | None = None

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.told = time.monotonic()

    def __enter__(self) -> Self:
        if self.moving is not None:
            self.moving.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.moving is not None:
            self.moving.stop()

    def say(self, text: str) -> None:
        self.console.print(f"unfix: {escape(text)}")

    def log(self, text: str) -> None:
        """A line now and then where nothing moves."""
        if time.monotonic() - self.told > EVERY:
            self.told = time.monotonic()
            self.say(text)


class WithBars(Watching):
    """Bars that are gone at the end, and nothing where nobody looks on."""

    def __init__(self) -> None:
        super().__init__()
        self.bar = self.moving = Progress(
            TextColumn("unfix: {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not sys.stderr.isatty(),
        )
