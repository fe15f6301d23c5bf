"""The progress of a step that only fills the disk, such as pip's: what it has written so far."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.core.wording import format_duration

REPORT_INTERVAL = 10.0  # seconds


@contextlib.contextmanager
def report_written_bytes(
    folder: Path, what: str, expected: float, report: Callable[[str], object]
) -> Iterator[None]:
    """Report during the block how much of what is expected lies on the disk of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()
    begun, free = time.monotonic(), shutil.disk_usage(folder).free

    def report_again() -> None:
        while not ended.wait(REPORT_INTERVAL):
            seconds = time.monotonic() - begun
            written = max(0, free - shutil.disk_usage(folder).free)
            words = f"{what}: {written / 1e6:.0f} of about {expected / 1e6:.0f} MB written"
            if 0 < written < expected:
                left = seconds * (expected - written) / written
                words += f", about {format_duration(left)} left"
            report(f"{words}, for {format_duration(seconds)}")

    thread = threading.Thread(target=report_again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
