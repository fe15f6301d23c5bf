"""Lines over two pipes: messages between a process and its children.

The standard streams of a started process go into a log, so nothing that a library prints can be
mistaken for a message. Example: after `a, b = make_pipe_pair()`, `a.send(b"1")` makes
`b.receive_lines()` give `[b"1"]`.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol


class Waitable(Protocol):
    """A source of input, or a process whose end is waited for."""

    def fileno(self) -> int: ...


Receivers = Mapping[Waitable, Callable[[], object]]  # each source with what takes its input


def serve_ready(
    receivers: Receivers, seconds: float | None = None, unsent: Sequence[int] = ()
) -> bool:
    """Wait for a source that has input or has ended, and call the receivers of all that do.

    Return whether there was one within so many seconds. The wait ends as well once one of the
    descriptors in `unsent` takes more.
    """
    limit = None if seconds is None else max(0.0, seconds)
    ready = select.select(list(receivers), unsent, [], limit)[0]
    for source in ready:
        receivers[source]()
    return bool(ready)


def serve_until(
    is_done: Callable[[], bool],
    list_receivers: Callable[[], Receivers],
    seconds: float | None = None,
) -> bool:
    """Serve sources until `is_done`; return whether that came within so many seconds.

    `list_receivers` is called before each wait, since a receiver may add sources or take one away.
    This is the only loop of its kind: the engine has its own turns, each of which serves once.
    """
    ends_at = None if seconds is None else time.monotonic() + seconds
    while not is_done():
        left = None if ends_at is None else ends_at - time.monotonic()
        if not serve_ready(list_receivers(), left):
            return False
    return True


class PipeEnd:
    """One end of two pipes: the other end receives the lines that this one sends."""

    def __init__(self, read: int, write: int) -> None:
        self.read_end, self._write_end = read, write
        self._partial_line = b""
        self._unsent = b""
        self.is_peer_closed = False  # the other end is closed in every process

    def fileno(self) -> int:
        return self.read_end

    @property
    def descriptors(self) -> tuple[int, int]:
        return self.read_end, self._write_end

    def send(self, text: bytes) -> None:
        text += b"\n"
        while text:
            text = text[os.write(self._write_end, text) :]

    def send_without_blocking(self, text: bytes) -> None:
        """Send as much as the pipe takes now; `flush` sends the rest.

        The peer may be waiting for this process: a blocking write to it could then wait for ever.
        """
        self._unsent += text + b"\n"
        self.flush()

    def flush(self) -> None:
        while self._unsent and select.select([], [self._write_end], [], 0)[1]:
            # A pipe that is ready for writing takes PIPE_BUF bytes without blocking.
            count = os.write(self._write_end, self._unsent[: select.PIPE_BUF])
            self._unsent = self._unsent[count:]

    @property
    def pending_write_ends(self) -> list[int]:
        """Return the descriptors that a `select` must watch for writing; empty if all is sent."""
        return [self._write_end] if self._unsent else []

    def receive_lines(self) -> list[bytes]:
        """Return the lines that have arrived; blocks until there are bytes or the peer closes."""
        data = os.read(self.read_end, 1 << 16)
        self.is_peer_closed = not data
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        return lines

    def iterate_lines(self) -> Iterator[bytes]:
        """Yield every line until the peer closes its end."""
        while not self.is_peer_closed:
            yield from self.receive_lines()

    def close_write_end(self) -> None:
        """Send nothing more; lines of the peer can still be received."""
        with contextlib.suppress(OSError):
            os.close(self._write_end)
        self._write_end = -1

    def close(self) -> None:
        self.close_write_end()
        with contextlib.suppress(OSError):
            os.close(self.read_end)
        self.read_end = -1


def make_pipe_pair() -> tuple[PipeEnd, PipeEnd]:
    """Create two connected ends."""
    first_read, second_write = os.pipe()
    second_read, first_write = os.pipe()
    return PipeEnd(first_read, first_write), PipeEnd(second_read, second_write)
