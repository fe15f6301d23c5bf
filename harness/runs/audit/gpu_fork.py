"""A fork that runs findings on a GPU, as the process that forked it sees it."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass

from harness.core import child_process
from harness.core.pipes import PipeEnd
from harness.workers.engine import Worker


@dataclass(frozen=True, slots=True)
class FindingOrder:
    """Findings by number that share a compiled kernel, for one fork."""

    numbers: tuple[int, ...]
    slow_step: str = ""  # the step in which an earlier fork ran out of time


class GpuFork(Worker[bytes]):
    """A fork that serves orders, one at a time."""

    def __init__(self, serve: Callable[[PipeEnd], None]) -> None:
        self.process, self.pipe = child_process.fork_with_pipe(serve, new_session=True)
        self.remaining: list[int] = []
        self.slow_step = ""  # the slow step of its order
        self.step = ""  # the step that it has begun

    @property
    def remaining_order(self) -> FindingOrder:
        return FindingOrder(tuple(self.remaining), self.slow_step)

    def fileno(self) -> int:
        return self.pipe.read_end

    @property
    def unsent_ends(self) -> list[int]:
        return self.pipe.pending_write_ends

    def send_rest(self) -> None:
        self.pipe.flush()

    def assign(self, order: FindingOrder) -> None:
        self.remaining, self.slow_step, self.step = list(order.numbers), order.slow_step, ""
        with contextlib.suppress(BrokenPipeError):  # the fork has ended; its pipe shows that next
            text = json.dumps([order.numbers, order.slow_step])
            self.pipe.send_without_blocking(text.encode())

    def receive_messages(self) -> list[bytes] | None:
        lines = self.pipe.receive_lines()
        return None if self.pipe.is_peer_closed else lines

    def ask_to_end(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def end(self, kill: bool = False) -> int:
        self.pipe.close()
        code = self.process.reap()
        child_process.kill_process_group(self.process.pid)  # its assembler may still run
        return code
