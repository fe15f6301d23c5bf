"""A child process that answers JSON messages, each within a time limit."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.child_process import PipedProcess, ProcessHandle, end_process_group
from harness.core.pipes import Waitable, wait_for_any


class ReplyTimeout(Exception):
    """An error: no message arrived within the time limit."""


class ProcessEnded(Exception):
    """An error: the process ended; the text is the last line of its log."""


class JsonProcess(PipedProcess):
    """A process that exchanges lines of JSON."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(command, environment, log)
        self._received_lines: deque[bytes] = deque()

    def send_json(self, message: Mapping[str, Any]) -> None:
        try:
            self.pipe.send(json.dumps(message).encode())
        except OSError:
            raise ProcessEnded(self._read_last_log_line()) from None

    def receive_json(
        self, seconds: float, watched: ProcessHandle | None = None, grace_seconds: float = 0.0
    ) -> Any:
        """Receive the next message; once the watched process ends, wait only `grace_seconds`."""
        ends = time.monotonic() + seconds
        while not self._received_lines:
            sources: list[Waitable] = [self.pipe] if watched is None else [self.pipe, watched]
            ready = wait_for_any(sources, ends - time.monotonic())
            if watched in ready:
                watched, ends = None, min(ends, time.monotonic() + grace_seconds)
                continue
            if not ready:
                raise ReplyTimeout(f"{seconds:.0f} s")
            self._received_lines += self.pipe.receive_lines()
            if self.pipe.is_peer_closed:
                raise ProcessEnded(self._read_last_log_line())
        return json.loads(self._received_lines.popleft())

    def _read_last_log_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:400] if lines else "its log is empty"

    def end(self, grace_seconds: float = 0.0) -> None:
        """End the process group; a thread that waits for a message gets ProcessEnded."""
        end_process_group(self.process, grace_seconds, terminate=grace_seconds > 0)

    def close(self) -> None:
        self.pipe.close()
