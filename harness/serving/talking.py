"""A process that is told things and answers, one after another, each within a time."""

from __future__ import annotations

import json
import select
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.lines import Child


class Silent(Exception):
    """No answer within the time."""


class Gone(Exception):
    """It ended; the last line of its log says why."""


class Talking(Child):
    """Such a process; it says JSON and is told JSON."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(command, environment, log)
        self._heard: deque[bytes] = deque()

    def say(self, what: Mapping[str, Any]) -> None:
        try:
            self.line.say(json.dumps(what).encode())
        except OSError:
            raise Gone(self._last_words()) from None

    def hear(self, seconds: float, watched: int | None = None, after: float = 0.0) -> Any:
        """The next line. Once `watched` can be read, it has so many seconds more (`after`)."""
        ends = time.monotonic() + seconds
        while not self._heard:
            read_end = self.line.read_end
            ears = [read_end] if watched is None else [read_end, watched]
            ready = select.select(ears, [], [], max(0.0, ends - time.monotonic()))[0]
            if watched in ready:
                watched, ends = None, min(ends, time.monotonic() + after)
                continue
            if not ready:
                raise Silent(f"{seconds:.0f} s")
            self._heard += self.line.heard()
            if self.line.over:
                raise Gone(self._last_words())
        return json.loads(self._heard.popleft())

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:400] if lines else "it said nothing"

    def end(self, patience: float = 0.0) -> None:
        """End its processes; a thread that waits for it hears of that."""
        if self.process.poll() is None and patience:
            self.process.terminate()
        self.wait(patience)

    def close(self) -> None:
        self.line.close()
