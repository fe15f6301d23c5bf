"""The host of virtual ranks: it forks them, and answers their collectives when all members called.

Invariant: a rank waits for an answer in its call or it runs; so the host sees at once when nobody
can go on. It answers every call with a result or with a report: of calls that do not belong
together, of a rank that has ended or that stands still. After a report no call gets a result.

    host = RankHost(2, folder, lambda rank: run_model(rank))
    host.run()            # what went wrong first, as violations or words; [] if nothing did
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from harness.core import child_process, pipes, process_exit, processes
from harness.sanitizer.device import cards, process_group
from harness.sanitizer.device.callers import is_own_code
from harness.sanitizer.ranks import group, reports
from harness.sanitizer.ranks.messages import (
    IN_ORDER,
    Call,
    Collective,
    HostAnswer,
    Link,
    Note,
    TensorFacts,
    make_links,
)
from harness.sanitizer.ranks.results import compute_results
from harness.sanitizer.violations.facts import shorten_path

POLL_SECONDS = 0.25
STILL_SECONDS = 5.0  # a rank that sleeps so long while others wait for it
BUSY_SECONDS = 8.0  # of a processor, in which it comes to no collective
ENDING_SECONDS = 2.0  # for the ranks to end after a report
_TICKS = os.sysconf("SC_CLK_TCK")
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_MACHINERY = ("/torch/", "/triton/", "/lib/python3", "<frozen")
_LOG_BYTES = 6000


@dataclass
class _Rank:
    """One rank, as the host knows it."""

    number: int
    process: child_process.ProcessHandle
    link: Link
    folder: Path
    call: Call | None = None  # in which it waits
    is_preparing: bool = False
    failure: str = ""  # its exception
    end: str = ""  # "exit code 1"
    is_killed: bool = False  # by the host, after a report
    began: float = 0.0  # its processor seconds when it last went on
    used: float = 0.0  # its processor seconds when it was last looked at
    moved: float = field(default_factory=time.monotonic)  # when it was last seen at work

    @property
    def runs(self) -> bool:
        return not self.end and self.call is None

    def describe(self) -> str:
        if self.end:
            return f"has ended: {self.failure or self.end}"
        return f"is at {reports.describe_place(self.read_stack())}"

    def go_on(self) -> None:
        self.call = None
        self.used = self.began = _read_seconds(self.process.pid)
        self.moved = time.monotonic()

    def look(self, busy_seconds: float) -> str:
        """Say how the rank does not go on; '' while it does."""
        used, now = _read_seconds(self.process.pid), time.monotonic()
        if self.is_preparing:
            self.began = used
        if self.is_preparing or used > self.used or _wants_processor(self.process.pid):
            self.used, self.moved = used, now
        if now - self.moved > STILL_SECONDS:
            return f"stands still for {STILL_SECONDS:g} s"
        if used - self.began > busy_seconds:
            return f"runs for {busy_seconds:g} s of a processor"
        return ""

    def read_stack(self) -> list[str]:
        """Have the rank write its stack, and read the program's lines, innermost first."""
        file = self.folder / "stack"
        with contextlib.suppress(OSError):
            file.write_text("")
            self.process.send_signal(signal.SIGUSR2)
            ends = time.monotonic() + 1.0
            while not _FRAME.search(text := file.read_text()) and time.monotonic() < ends:
                time.sleep(0.02)
            lines = [
                f"{shorten_path(path)}:{line} in {name}"
                for path, line, name in _FRAME.findall(text)
                if not is_own_code(path) and not any(part in path for part in _MACHINERY)
            ]
            return lines[:6]
        return []


class RankHost:
    """Ranks that are forks of this process, and the switch between them."""

    def __init__(
        self,
        count: int,
        folder: Path,
        run: Callable[[int], object],
        get_busy_seconds: Callable[[int], float] = lambda rank: BUSY_SECONDS,
        sum_order: str = IN_ORDER,
    ) -> None:
        """`get_busy_seconds`: the limit of a rank, which is longer while it loads a model."""
        self._folder, self._sum_order = folder, sum_order
        self._run = run
        self._get_busy_seconds = get_busy_seconds
        self.problems: list[str] = []  # the first is the cause
        self._report: HostAnswer | None = None
        self._reported_at = 0.0
        self._sent: dict[tuple[object, ...], deque[Call]] = defaultdict(deque)
        ours, theirs = make_links(count)
        self._ranks = []
        for number in range(count):
            place = folder / f"rank-{number}"
            place.mkdir(parents=True, exist_ok=True)
            process = child_process.fork_process(partial(self._be_rank, number, ours, theirs))
            self._ranks.append(_Rank(number, process, ours[number], place))
        for link in theirs:
            link.close()

    def run(self) -> list[str]:
        """Serve the ranks until all have ended; return what went wrong, the cause first."""
        while any(not rank.end for rank in self._ranks):
            receivers: dict[pipes.Waitable, Callable[[], object]] = {}
            for rank in self._ranks:
                if not rank.end:
                    receivers[rank.link] = partial(self._receive, rank)
                    receivers[rank.process] = partial(self._note_end, rank)
            if not pipes.serve_ready(receivers, POLL_SECONDS):
                self._look_after_ranks()
            self._end_late_ranks()
        return self.problems

    # In the rank

    def _be_rank(self, number: int, ours: Sequence[Link], theirs: Sequence[Link]) -> None:
        for link in (*ours, *theirs[:number], *theirs[number + 1 :]):
            link.close()
        count = len(theirs)
        folder = self._folder / f"rank-{number}"
        output = child_process.redirect_output(folder / "output")
        faulthandler.enable(output)
        with open(folder / "stack", "a") as stack:
            faulthandler.register(signal.SIGUSR2, stack, all_threads=False)
            os.environ[cards.COUNT_VARIABLE] = str(count)
            torch.set_num_threads(1)
            place = group.RankPlace(number, count, theirs[number])
            group.make_backend(place)
            process_group.join_ranks(number, count, group.BACKEND)
            place.announce_preparations()
            try:
                self._run(number)
            except BaseException as error:
                words = f"{type(error).__name__}: {error}".partition("\n")[0]
                place.note(Note(failure=words))
                raise

    # Messages

    def _receive(self, rank: _Rank) -> None:
        message = rank.link.receive()
        match message:
            case Call():
                self._take_call(rank, message)
            case Note():
                rank.is_preparing = message.is_preparing
                self._note_failure(rank, message.failure)
            case _:
                self._note_end(rank)

    def _note_end(self, rank: _Rank) -> None:
        if rank.end:
            return
        rank.end = "is ending"  # what it sent before is still read
        with contextlib.suppress(OSError):
            while pipes.serve_ready({rank.link: lambda: None}, 0):
                message = rank.link.receive()
                if message is None:
                    break
                if isinstance(message, Note):
                    self._note_failure(rank, message.failure)
                elif isinstance(message, Call) and message.collective is Collective.SEND:
                    self._keep_sent(rank, message)
        code = rank.process.reap()
        rank.end = process_exit.describe_exit(code).words if code else "it is done"
        rank.link.close()
        if code and not rank.failure and not rank.is_killed:
            self.problems.append(f"rank {rank.number}: {rank.end}")
        self._find_stuck()

    def _note_failure(self, rank: _Rank, failure: str) -> None:
        """Note a rank's exception, unless it is the report that it was answered with."""
        rank.failure = rank.failure or failure
        if failure and (self._report is None or self._report.headline not in failure):
            self.problems.append(f"rank {rank.number}: {failure}")

    def _take_call(self, rank: _Rank, call: Call) -> None:
        rank.call = call
        if self._report is not None:
            self._answer(rank, self._report)
        elif call.collective is Collective.SEND:
            self._keep_sent(rank, call)
            self._answer(rank, HostAnswer())
            self._deliver(call.peer)
        elif call.collective is Collective.RECEIVE:
            self._deliver(rank.number)
        else:
            self._complete(call)
        self._find_stuck()

    def _answer(self, rank: _Rank, answer: HostAnswer) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            rank.link.send(answer)
        rank.go_on()

    # Tensors from one rank to another

    def _keep_sent(self, rank: _Rank, call: Call) -> None:
        self._sent[(*call.group, rank.number, call.peer, call.tag)].append(call)

    def _deliver(self, number: int) -> None:
        """Give a rank what was sent to it, if it waits for that."""
        rank = self._ranks[number]
        call = rank.call
        if call is None or call.collective is not Collective.RECEIVE:
            return
        waiting = self._sent[(*call.group, call.peer, number, call.tag)]
        if not waiting:
            return
        sent = waiting.popleft()
        if [f.dtype for f in sent.inputs] != [f.dtype for f in call.outputs] or [
            reports.count_elements(facts) for facts in sent.inputs
        ] != [reports.count_elements(facts) for facts in call.outputs]:
            self._fail(
                reports.MISMATCH,
                f"rank {call.peer} sends {', '.join(map(str, sent.inputs))}, and rank {number} "
                f"receives {', '.join(map(str, call.outputs))}",
                {call.peer: sent, number: call},
            )
        else:
            self._answer(rank, HostAnswer(sent.payload))

    # Collectives

    def _complete(self, call: Call) -> None:
        """HostAnswer the members of a group if all of them called."""
        calls = {
            member: waiting
            for member in call.members
            if (waiting := self._ranks[member].call) is not None and waiting.group == call.group
        }
        if wrong := reports.find_mismatch(calls):
            self._fail(reports.MISMATCH, wrong, calls)
        elif len(calls) == len(call.members):
            self._compute(calls)

    def _compute(self, calls: dict[int, Call]) -> None:
        ordered = [calls[member] for member in next(iter(calls.values())).members]
        first = ordered[0]
        inputs = [
            [_make_tensor(*pair) for pair in zip(call.inputs, call.payload, strict=True)]
            for call in ordered
        ]
        root = first.members.index(first.peer) if first.peer >= 0 else 0
        results = compute_results(first.collective, first.operation, root, inputs, self._sum_order)
        for call, member, tensors in zip(ordered, first.members, results, strict=True):
            tensors = tensors if call.outputs else []
            if wrong := reports.find_unfitting_output(call, member, tensors):
                self._fail(reports.MISMATCH, wrong, calls)
                return
        for call, member, tensors in zip(ordered, first.members, results, strict=True):
            parts = [_read_bytes(tensor) for tensor in tensors] if call.outputs else []
            self._answer(self._ranks[member], HostAnswer(parts))

    # What cannot go on

    def _fail(self, kind: str, headline: str, calls: dict[int, Call] | None = None) -> None:
        """Report to every rank that waits, and to every later call."""
        waiting = {rank.number: rank.call for rank in self._ranks if rank.call is not None}
        others = {
            rank.number: rank.describe() for rank in self._ranks if rank.number not in waiting
        }
        lines = {**waiting, **(calls or {})}
        details = reports.describe_ranks(
            lines, {number: words for number, words in others.items() if number not in lines}
        )
        self._report, self._reported_at = HostAnswer([], kind, headline, details), time.monotonic()
        self.problems.append("\n  ".join([headline, *details]))
        for rank in self._ranks:
            if rank.call is not None:
                self._answer(rank, self._report)

    def _find_stuck(self) -> None:
        """Report ranks that wait for one that has ended, or all for each other."""
        if self._report is not None:
            return
        waiting = [rank for rank in self._ranks if rank.call is not None]
        for rank in waiting:
            assert rank.call is not None
            for member in self._list_missing(rank.call):
                other = self._ranks[member]
                if other.end and other.end != "is ending":
                    self._fail(
                        reports.LOST,
                        f"rank {rank.number} waits in {rank.call.collective} for rank {member}, "
                        f"which has ended: {other.failure or other.end}",
                    )
                    return
        if waiting and not any(rank.runs for rank in self._ranks):
            self._fail(reports.MISMATCH, "the ranks wait for each other at different collectives")

    def _list_missing(self, call: Call) -> list[int]:
        """List the members that a call waits for."""
        wanted = [call.peer] if call.collective is Collective.RECEIVE else call.members
        return [
            member
            for member in wanted
            if (theirs := self._ranks[member].call) is None or theirs.group != call.group
        ]

    def _look_after_ranks(self) -> None:
        if self._report is not None or not any(rank.call for rank in self._ranks):
            return
        for rank in self._ranks:
            if rank.runs and (words := rank.look(self._get_busy_seconds(rank.number))):
                waiting = next(one for one in self._ranks if one.call is not None)
                assert waiting.call is not None
                self._fail(
                    reports.LOST,
                    f"rank {rank.number} {words} while rank {waiting.number} waits in "
                    f"{waiting.call.collective}",
                )
                return

    def _end_late_ranks(self) -> None:
        """Kill the ranks that do not end after a report."""
        if self._report is None or time.monotonic() - self._reported_at < ENDING_SECONDS:
            return
        for rank in self._ranks:
            if not rank.end:
                rank.is_killed = True
                rank.process.send_signal(signal.SIGKILL)

    def read_log(self, number: int) -> str:
        return processes.read_log_tail(self._ranks[number].folder / "output", _LOG_BYTES)


def _make_tensor(facts: TensorFacts, data: bytes) -> torch.Tensor:
    dtype = getattr(torch, facts.dtype)
    if not data:
        return torch.empty(facts.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(facts.shape)


def _read_bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def _read_seconds(pid: int) -> float:
    """Read the processor seconds of a process and of its children."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    return 0.0


def _wants_processor(pid: int) -> bool:
    """Return whether a thread of a process runs, or waits for a processor or a disk."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            fields = Path(f"/proc/{pid}/task/{task}/stat").read_text().rpartition(")")[2].split()
            if fields[0] in "RD":
                return True
    return False
