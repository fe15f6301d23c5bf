"""The order of a run: what waits, what goes on somewhere, what is tried again, what is kept.

Knows nothing of where a cell runs; whoever runs it is an `Executor`. Knows nothing of the store;
what ended is handed to `keep` within a moment, many at a time: a write to the disk for each would
be slower than a large fleet. A failure is kept before its cell is run again: were it forgotten by a
driver that dies in between, a flaky cell would come out green.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from harness.matrix import preparing
from harness.matrix.attempting import Task, now
from harness.matrix.values import Cell, Needs
from harness.store.matrix.values import Attempt, Outcome

TICK = 0.5  # seconds to wait for an end before looking around
MOMENT = 0.25  # seconds after which what ended is kept at the latest
LOSSES = 3  # a cell that takes down so many machines is not given a further one


class Ended(msgspec.Struct, frozen=True):
    """One attempt that is over."""

    cell: str
    attempt: Attempt


class Executor(Protocol):
    """Whoever runs cells, many at a time."""

    def lacking(self, needs: Needs) -> str:
        """What no machine has of these needs, in words; '' if there is one that has all."""
        ...

    def room(self, needs: Needs) -> bool:
        """Whether one more with these needs may be started now."""
        ...

    def start(self, task: Task, needs: Needs) -> None: ...

    def wait(self, seconds: float) -> list[Ended]:
        """All that ended, waiting at most so long for the first."""
        ...

    def stop(self) -> None:
        """End all that runs; nothing more is told of it."""
        ...

    def close(self) -> None: ...


class Rules(msgspec.Struct, frozen=True):
    """How a run goes on after a cell that is not green."""

    retries: int = 0  # of a cell whose command failed
    fail_fast: bool = False


class Place(msgspec.Struct, frozen=True):
    """Which run it is, and where its logs go."""

    run: str
    folder: Path
    here: Path
    adding: list[str] = []  # words that install a release, if not unfix's own

    def of(self, cell: str) -> Path:
        return self.folder / cell


Keep = Callable[[list[tuple[str, Attempt]]], None]


class Running:
    """One run of some cells."""

    def __init__(
        self,
        cells: Iterable[Cell],
        executor: Executor,
        place: Place,
        rules: Rules,
        keep: Keep,
        before: dict[str, list[Attempt]] | None = None,
    ) -> None:
        """`before` has the attempts of a run that goes on, for the cells that are not done."""
        self.cells = {cell.identity: cell for cell in cells}
        self.executor = executor
        self.place = place
        self.rules = rules
        self.keep = keep
        self.tried = {name: list((before or {}).get(name, [])) for name in self.cells}
        self.begun_with = {name: len(tried) for name, tried in self.tried.items()}
        self.waiting: dict[bytes, deque[Cell]] = {}
        self.going: set[str] = set()
        self.missing: dict[bytes, str] = {}  # what no machine has, by needs
        self.unkept: list[tuple[str, Attempt]] = []
        self.kept = time.monotonic()

    def go(self) -> bool:
        """Run them all; False if it ended at the first that is not green, as asked for."""
        for cell in longest_first(self.cells.values()):
            self.waiting.setdefault(_shape(cell.needs), deque()).append(cell)
        try:
            return self._until_all_is_done()
        finally:
            if self.going:
                self.executor.stop()
            self._flush()

    def _until_all_is_done(self) -> bool:
        while self.going or any(self.waiting.values()):
            fine = self._keep(self._nowhere())
            if fine or not self.rules.fail_fast:
                self._fill()
                patience = MOMENT if self.unkept else TICK
                ended = self.executor.wait(patience) if self.going else []
                fine = self._keep([self._judged(one) for one in ended]) and fine
            if not fine and self.rules.fail_fast:
                return False
        return True

    def _nowhere(self) -> list[tuple[str, Attempt]]:
        """Those that wait for what no machine has, said at once."""
        ended = []
        for shape, queue in self.waiting.items():
            if not queue:
                continue
            why = self.executor.lacking(queue[0].needs)
            if why:
                self.missing[shape] = why
                ended += [(cell.identity, self._not_ready(cell, why)) for cell in queue]
                queue.clear()
        return ended

    def _not_ready(self, cell: Cell, why: str) -> Attempt:
        number = len(self.tried[cell.identity]) + 1
        return Attempt(number, Outcome.NOT_READY, why, now(), last=True)

    def _fill(self) -> None:
        for queue in self.waiting.values():
            while queue and self.executor.room(queue[0].needs):
                cell = queue.popleft()
                self.executor.start(self._task(cell), cell.needs)
                self.going.add(cell.identity)

    def _task(self, cell: Cell) -> Task:
        return Task(
            run=self.place.run,
            cell=cell.identity,
            number=len(self.tried[cell.identity]) + 1,
            command=cell.command,
            environment=cell.environment,
            limit=cell.limit,
            folder=str(self.place.of(cell.identity)),
            here=str(self.place.here),
            release=preparing.needed(cell.values, cell.command),
            cpus=cell.needs.cpus,
            gpus=cell.needs.gpus,
            adding=self.place.adding,
        )

    def _judged(self, ended: Ended) -> tuple[str, Attempt]:
        """Whether it is the last attempt; if not, its cell waits again, before all others."""
        self.going.discard(ended.cell)
        cell = self.cells[ended.cell]
        attempt = ended.attempt
        again = self._again(cell, attempt)
        if again:
            self.waiting[_shape(cell.needs)].appendleft(cell)
        return ended.cell, msgspec.structs.replace(attempt, last=not again)

    def _again(self, cell: Cell, attempt: Attempt) -> bool:
        tried = [*self.tried[cell.identity], attempt]
        if attempt.outcome is Outcome.LOST:
            mine = tried[self.begun_with[cell.identity] :]
            return sum(one.outcome is Outcome.LOST for one in mine) < LOSSES
        failed = sum(one.outcome.failed for one in tried)
        return attempt.outcome.failed and failed <= self.rules.retries

    def _keep(self, ended: list[tuple[str, Attempt]]) -> bool:
        """Have them kept; whether none of them ends a cell that is not green."""
        self.unkept += ended
        for cell, attempt in ended:
            self.tried[cell].append(attempt)
        late = time.monotonic() > self.kept + MOMENT
        if late or any(not one.last for _, one in ended):
            self._flush()
        return not any(one.last and one.outcome is not Outcome.GREEN for _, one in ended)

    def _flush(self) -> None:
        ended, self.unkept = self.unkept, []
        if ended:
            self.keep(ended)
        self.kept = time.monotonic()


def longest_first(cells: Iterable[Cell]) -> list[Cell]:
    """The longest that is known first; one that nobody has run may be long as well."""
    return sorted(cells, key=lambda cell: -(float("inf") if cell.seconds is None else cell.seconds))


def _shape(needs: Needs) -> bytes:
    return msgspec.json.encode(needs, order="sorted")
