"""A process that is told things and answers, in lines of JSON over two pipes of its own.

Its output is a log, so whatever a library prints is no answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Silent(Exception):
    """No answer within the time."""


class Gone(Exception):
    """It ended; the last line of its log says why."""


class Talking:
    """Such a process: a Python module, given the numbers of its two ends behind its words."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._rest = b""
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [*command, str(there), str(back)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(there, back),
                start_new_session=True,
            )
        os.close(there)
        os.close(back)

    def say(self, what: Mapping[str, Any]) -> None:
        try:
            os.write(self._write, json.dumps(what).encode() + b"\n")
        except OSError:
            raise Gone(self._last_words()) from None

    def hear(self, seconds: float, watched: int | None = None, after: float = 0.0) -> Any:
        """The next line. Once `watched` can be read, it has so many seconds more (`after`)."""
        ends = time.monotonic() + seconds
        while b"\n" not in self._rest:
            ears = [self._read] if watched is None else [self._read, watched]
            ready = select.select(ears, [], [], max(0.0, ends - time.monotonic()))[0]
            if watched in ready:
                watched, ends = None, min(ends, time.monotonic() + after)
                continue
            if not ready:
                raise Silent(f"{seconds:.0f} s")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise Gone(self._last_words())
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:400] if lines else "it said nothing"

    def end(self, patience: float = 0.0) -> None:
        """End its processes; a thread that waits for it hears of that."""
        if self.process.poll() is None and patience:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def close(self) -> None:
        for end in (self._write, self._read):
            with contextlib.suppress(OSError):
                os.close(end)
        self._write = self._read = -1
