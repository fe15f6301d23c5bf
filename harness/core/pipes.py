"""Lines over two pipes: how a process of ours talks with those that it starts.

What these print goes into a log, so whatever a library prints is no answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class PipeEnd:
    """One end: what is said here is heard there."""

    def __init__(self, read: int, write: int) -> None:
        self.read_end, self._write_end = read, write
        self._partial_line = b""
        self._unsent = b""
        self.is_peer_closed = False  # nobody is at the other end

    def send(self, text: bytes) -> None:
        text += b"\n"
        while text:
            text = text[os.write(self._write_end, text) :]

    def send_without_blocking(self, text: bytes) -> None:
        """Without waiting for the other end, which may wait for this one; `go_on` says the rest."""
        self._unsent += text + b"\n"
        self.flush()

    def flush(self) -> None:
        while self._unsent and select.select([], [self._write_end], [], 0)[1]:
            # So much fits at once wherever anything does.
            done = os.write(self._write_end, self._unsent[: select.PIPE_BUF])
            self._unsent = self._unsent[done:]

    @property
    def pending_write_ends(self) -> list[int]:
        """The end to wait for, besides the one that is read: empty if all is said."""
        return [self._write_end] if self._unsent else []

    def receive_lines(self) -> list[bytes]:
        """The lines that have come; blocks until there is something."""
        data = os.read(self.read_end, 1 << 16)
        self.is_peer_closed = not data
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        return lines

    def close_write_end(self) -> None:
        """Say nothing more; what is said there can still be heard."""
        with contextlib.suppress(OSError):
            os.close(self._write_end)
        self._write_end = -1

    def close(self) -> None:
        self.close_write_end()
        with contextlib.suppress(OSError):
            os.close(self.read_end)
        self.read_end = -1


class PipedProcess:
    """A process at the other end: a command, given the numbers of its pipes behind its words."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        working_folder: Path | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        there, write = os.pipe()
        read, back = os.pipe()
        self.pipe = PipeEnd(read, write)
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [*command, str(there), str(back)],
                cwd=working_folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(there, back),
                start_new_session=True,  # a Ctrl-C is ours to handle
            )
        os.close(there)
        os.close(back)

    def wait_or_kill(self, seconds: float) -> int:
        """Its exit code, negative for a signal; after so long, all of its group is killed."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()
