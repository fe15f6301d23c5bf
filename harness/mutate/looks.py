"""Looks under way: a worker, what it is asked, who is told what came of it."""

from __future__ import annotations

import contextlib
import select
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness import processes
from harness.errors import NotReady, UnfixError
from harness.mutate.messages import Asked as Guard
from harness.mutate.messages import Collected, Load, Look, Looked, Said, Setting
from harness.prove.messages import Failed
from harness.prove.plan import Target
from harness.prove.workers import WorkerProcess
from harness.store.mutate.faults import Fault
from harness.store.prove.values import Outcome, Side

TO_START = 900.0  # seconds for an import, before it counts as one that hangs
ENGINE = "test_engine.py"  # of servers, which are other processes: a fork's fault is not in them


@dataclass(frozen=True)
class Asked:
    """What the caller wants."""

    target: Target
    faults: tuple[Fault, ...]
    families: dict[str, str]  # by target
    equals: dict[str, str]  # faults said to be equal, and why
    doubts: bool  # look at those as well
    words: list[str]  # pytest's arguments: the suites
    place: Path  # where pytest stands
    jobs: int
    memory: int
    profile: str
    examples: int = 10  # times as many for what survived a first look; 1: no second one
    shrink: bool = False
    folders: list[Path] = field(default_factory=list)  # further toggles


@dataclass
class Pending:
    """A look that is wanted, and who is told what came of it."""

    guards: list[tuple[str, float]]  # and how long each may take
    told: Callable[[Looked, list[str]], None]
    fault: Fault | None = None
    examples: int = 1
    trace: bool = False  # record which lines they run
    attempts: int = 0  # that a worker or a keeper did not live to tell of

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.guards]


class LookWorker(WorkerProcess[Said]):
    """One process that imports a release and forks looks at faults."""

    module = "harness.mutate.worker"
    says = Said


class Looks:
    """A worker that forks a look each, so many at a time; another one in its place if it ends."""

    def __init__(self, asked: Asked, folder: Path, problem: Callable[[str], None]) -> None:
        self.asked = asked
        self.folder = folder
        self.again: deque[Pending] = deque()  # before any that has not begun
        self.alone: deque[Pending] = deque()  # when nothing else runs: one of them ended a worker
        self.later: deque[Pending] = deque()  # after all others
        self._problem = problem
        self._worker: LookWorker | None = None
        self._numbers: dict[str, int] = {}
        self._running: dict[int, Pending] = {}
        self._modules: list[str] = []
        self._serial = 0

    def start(self) -> Collected:
        """Have SGLang imported and the guards collected."""
        self.folder.mkdir(parents=True, exist_ok=True)
        asked = self.asked
        setting = Setting(
            release=asked.target.asked or asked.target.name,
            words=["--profile", asked.profile, *asked.words, f"--ignore-glob=*/{ENGINE}"],
            folder=tempfile.mkdtemp(dir=self.folder),
            device=asked.target.device,
        )
        log = self.folder / "worker.log"
        worker = LookWorker(asked.target.python, setting, asked.folders, asked.place, log)
        self._worker = worker
        said = worker.first(TO_START)
        if said is None:
            raise NotReady(f"the worker did not begin: {worker.last_words()}")
        assert not isinstance(said, Looked)
        if isinstance(said, Failed):
            error = UnfixError if said.wrong_call else NotReady
            raise error(f"{said.problem}\n{worker.last_words()}".strip())
        if not said.guards:
            raise UnfixError(f"pytest collects no guard of {' '.join(asked.words)}")
        self._numbers = {guard: number for number, guard in enumerate(said.guards)}
        return said

    def load(self, modules: list[str]) -> None:
        """Have modules imported before the next look, so that no fork has to."""
        self._modules += modules
        assert self._worker is not None
        self._worker.tell_soon(Load(modules))

    def work(self, more: Iterator[Pending]) -> None:
        """Until there are no more, and all have ended; each is taken when there is room for it."""
        while True:
            while len(self._running) < self.asked.jobs and not self.alone:
                pending = self._next(more)
                if pending is None:
                    break
                self._hand_out(pending)
            if self.alone and not self._running:
                self._hand_out(self.alone.popleft())
            if not self._running:
                return
            self._listen()

    def _next(self, more: Iterator[Pending]) -> Pending | None:
        if self.again:
            return self.again.popleft()
        pending = next(more, None)
        return self.later.popleft() if pending is None and self.later else pending

    def _hand_out(self, pending: Pending) -> None:
        assert self._worker is not None
        self._serial += 1
        self._running[self._serial] = pending
        self._worker.tell_soon(
            Look(
                serial=self._serial,
                guards=[Guard(self._numbers[name], limit) for name, limit in pending.guards],
                memory=self.asked.memory,
                fault=pending.fault,
                examples=pending.examples,
                trace=pending.trace,
                keep_shrinking=self.asked.shrink,
            )
        )

    def _listen(self) -> None:
        worker = self._worker
        assert worker is not None
        ready, _, _ = select.select([worker.read_end], worker.line.full, [], 1.0)
        with contextlib.suppress(BrokenPipeError):  # its other end tells
            worker.line.go_on()
        if not ready:
            return
        said = worker.said()
        if said is None:
            self._gone(worker)
        for each in said or ():
            assert isinstance(each, Looked)
            pending = self._running.pop(each.serial)
            if each.last.outcome is Outcome.LOST and not pending.attempts:
                pending.attempts += 1  # its keeper was ended, perhaps by another look
                self.again.append(pending)
            else:
                pending.told(each, pending.names)

    def _gone(self, worker: LookWorker) -> None:
        """The worker ended: each that ran in it runs alone in another one, and is known then."""
        code, words = worker.end(), worker.last_words()
        how = processes.signal_name(-code) if code < 0 else f"exit code {code}"
        lost, self._running = list(self._running.values()), {}
        blamed = lost[0] if len(lost) == 1 and lost[0].attempts else None
        if blamed is not None and blamed.fault is None:
            raise NotReady(f"two workers ended over {blamed.names[0]} ({how}): {words}")
        self._problem(f"a worker ended ({how}) and another took its place: {words}")
        self.start()
        self.load(self._modules)
        if blamed is not None:
            side = Side("", Outcome.LOST, headline=f"its worker ended: {how}")
            blamed.told(Looked(0, [], side), blamed.names)
            return
        for pending in lost:
            pending.attempts += 1
        self.alone.extend(lost)

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
