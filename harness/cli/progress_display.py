"""The progress of a run on stderr."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LOG_INTERVAL = 30.0  # seconds between two lines in a log


class ProgressDisplay:
    """A live display during a block on a terminal, with lines above it."""

    live_display: Progress | Live | None = None

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.last_logged = time.monotonic()

    def __enter__(self) -> Self:
        if self.live_display is not None:
            self.live_display.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live_display is not None:
            self.live_display.stop()

    def print_line(self, text: str) -> None:
        self.console.print(f"unfix: {escape(text)}")

    def log_occasionally(self, text: str) -> None:
        """Write a line every half minute, in a log without a live display."""
        if time.monotonic() - self.last_logged > LOG_INTERVAL:
            self.last_logged = time.monotonic()
            self.print_line(text)


class ProgressBars(ProgressDisplay):
    """Bars on a terminal, which vanish at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.bar = self.live_display = Progress(
            TextColumn("unfix: {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not sys.stderr.isatty(),
        )
