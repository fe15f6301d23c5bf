"""The progress of a run on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from harness.core import processes
from harness.core.wording import format_duration

LOG_INTERVAL = 30.0  # seconds between two lines in a log
FIRST_INTERVAL = 5.0  # in a log with bars; later ones grow with the time that has passed
ESTIMATE_PERIOD = 300.0  # seconds of progress by which the rest is estimated: a build takes 30
_BUILDERS = frozenset({"nvcc", "cicc", "cudafe++", "ptxas", "ninja"})


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


class BuildColumn(ProgressColumn):
    """Says that nvcc is at work in a process below this one: a build takes up to minutes."""

    max_refresh = 1.0

    def render(self, task: Task) -> Text:
        return Text(describe_builds())


def describe_builds() -> str:
    for pid in processes.iterate_descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/comm").read_text().strip() in _BUILDERS:
                return "nvcc builds CUDA C++ kernels"
    return ""


class ProgressBars(ProgressDisplay):
    """Bars on a terminal, which vanish at the end; in a log a line for each, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self._has_ended = threading.Event()
        self._logger = threading.Thread(target=self._log_tasks, name="progress", daemon=True)
        self.bar = self.live_display = Progress(
            TextColumn("unfix: {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            BuildColumn(),
            console=self.console,
            transient=True,
            disable=not sys.stderr.isatty(),
            speed_estimate_period=ESTIMATE_PERIOD,
        )

    def __enter__(self) -> Self:
        if self.bar.disable:
            self._logger.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._has_ended.set()
        super().__exit__(*error)
        if self.bar.disable:
            self._logger.join()

    def _log_tasks(self) -> None:
        """Log what runs, how far it is and how long it will take, until the display ends."""
        begun = time.monotonic()
        interval = FIRST_INTERVAL
        logged: dict[int, float] = {}  # by task: how far it was
        while not self._has_ended.wait(interval):
            for task in self.bar.tasks:
                if task.started and not task.finished:
                    self.print_line(
                        describe_task(task, is_stalled=logged.get(task.id) == task.completed)
                    )
                    logged[task.id] = task.completed
            interval = min(60.0, max(interval, (time.monotonic() - begun) / 4))


def describe_task(task: Task, is_stalled: bool = False) -> str:
    """Describe a task: '30 of 294 SGLang 0.5.23 on cpu, about 2 m left'.

    Without an estimate while nothing ends, as when a build is waited for: what has ended makes it.
    """
    if task.total is None:
        words = f"{task.description}, for {format_duration(task.elapsed or 0)}"
    else:
        words = f"{task.description}: {task.completed:.0f} of {task.total:.0f}"
        if task.time_remaining and not is_stalled:
            words += f", about {format_duration(task.time_remaining)} left"
    return "; ".join(filter(None, (words, describe_builds())))
