"""Lines over two pipes: how a process of ours talks with those that it starts.

What these print goes into a log, so whatever a library prints is no answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class Line:
    """One end: what is said here is heard there."""

    def __init__(self, read: int, write: int) -> None:
        self.read_end, self._write = read, write
        self._rest = b""
        self.over = False  # nobody is at the other end

    def say(self, text: bytes) -> None:
        text += b"\n"
        while text:
            text = text[os.write(self._write, text) :]

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
