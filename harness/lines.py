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


class Line:
    """One end: what is said here is heard there."""

    def __init__(self, read: int, write: int) -> None:
        self.read_end, self._write = read, write
        self._rest = b""
        self._unsaid = b""
        self.over = False  # nobody is at the other end

    def say(self, text: bytes) -> None:
        text += b"\n"
        while text:
            text = text[os.write(self._write, text) :]

    def say_soon(self, text: bytes) -> None:
        """Without waiting for the other end, which may wait for this one; `go_on` says the rest."""
        self._unsaid += text + b"\n"
        self.go_on()

    def go_on(self) -> None:
        while self._unsaid and select.select([], [self._write], [], 0)[1]:
            # So much fits at once wherever anything does.
            done = os.write(self._write, self._unsaid[: select.PIPE_BUF])
            self._unsaid = self._unsaid[done:]

    @property
    def full(self) -> list[int]:
        """The end to wait for, besides the one that is read: empty if all is said."""
        return [self._write] if self._unsaid else []

    def heard(self) -> list[bytes]:
        """The lines that have come; blocks until there is something."""
        data = os.read(self.read_end, 1 << 16)
        self.over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def hang_up(self) -> None:
        """Say nothing more; what is said there can still be heard."""
        with contextlib.suppress(OSError):
            os.close(self._write)
        self._write = -1

    def close(self) -> None:
        self.hang_up()
        with contextlib.suppress(OSError):
            os.close(self.read_end)
        self.read_end = -1


class Child:
    """A process at the other end: a command, given the numbers of its pipes behind its words."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        place: Path | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        there, write = os.pipe()
        read, back = os.pipe()
        self.line = Line(read, write)
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [*command, str(there), str(back)],
                cwd=place,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(there, back),
                start_new_session=True,  # a Ctrl-C is ours to handle
            )
        os.close(there)
        os.close(back)

    def wait(self, seconds: float) -> int:
        """Its exit code, negative for a signal; after so long, all of its group is killed."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()
