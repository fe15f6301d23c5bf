"""A child process that answers JSON messages, each within a time limit."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.child_process import PipedProcess, ProcessHandle, end_process_group
from harness.core.pipes import Receivers, serve_until


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
        receivers: Receivers = {self.pipe: self._receive_lines}
        ends = list[None]()
        is_in_time, limit = True, seconds
        if watched is not None:
            both = {**receivers, watched: lambda: ends.append(None)}
            is_in_time = serve_until(lambda: bool(ends or self._has_news), lambda: both, limit)
            limit = min(limit, grace_seconds)
        if not (is_in_time and serve_until(lambda: self._has_news, lambda: receivers, limit)):
            raise ReplyTimeout(f"{seconds:.0f} s")
        if not self._received_lines:
            raise ProcessEnded(self._read_last_log_line())
        return json.loads(self._received_lines.popleft())

    def _receive_lines(self) -> None:
        self._received_lines += self.pipe.receive_lines()

    @property
    def _has_news(self) -> bool:
        return bool(self._received_lines or self.pipe.is_peer_closed)

    def _read_last_log_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:400] if lines else "its log is empty"

    def end(self, grace_seconds: float = 0.0) -> None:
        """End the process group; a thread that waits for a message gets ProcessEnded."""
        end_process_group(self.process, grace_seconds, terminate=grace_seconds > 0)

    def close(self) -> None:
        self.pipe.close()
