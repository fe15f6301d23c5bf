"""One release of a run: its worker, its tests, and what of them has failed."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from harness.fuzz import corpus
from harness.fuzz.schedule import Schedule, State
from harness.fuzz.values import (
    CodeFile,
    Collected,
    Covered,
    Kept,
    Setting,
    Slice,
    Tally,
    Under,
)
from harness.fuzz.workers import SliceWorker
from harness.prove.plan import Target

SHRINK = 30.0  # seconds for shrinking a failure
ATTEMPTS = 2  # slices for one that takes longer
GRACE = 4.0  # seconds beyond the budget, for what is just being done


@dataclass(frozen=True)
class Asked:
    """What the caller wants."""

    targets: list[Target]
    words: list[str]  # pytest's arguments: the suites
    place: Path  # where pytest stands
    under: Under
    seconds: float
    jobs: int
    seed: int
    memory: int
    limit: float  # seconds for an example
    folders: list[Path] = field(default_factory=list)  # further toggles


@dataclass
class Running:
    """A slice under way."""

    state: State
    asked: Slice
    hung: bool = False


class Lane:
    """One release of the run."""

    def __init__(self, asked: Asked, target: Target, folder: Path) -> None:
        self.asked = asked
        self.target = target
        self.folder = folder
        self.worker: SliceWorker | None = None
        self.schedule: Schedule | None = None
        self.states: list[State] = []
        self.running: dict[int, Running] = {}
        self.code: list[CodeFile] = []
        self.versions: dict[str, str] = {}
        self.kept: dict[tuple[str, str], Kept] = {}  # by test and failure
        self.again: list[tuple[State, str]] = []  # examples that are still to be shrunk
        self.attempts: Counter[str] = Counter()  # at shrinking an example
        self.lost = 0  # workers in a row that ended by themselves
        self.ready = False
        self.until = 0.0
        self.serial = 0
        self.over = False

    def start(self) -> None:
        place = corpus.place(self.target.name, self.asked.under)
        corpus.prepare(place)
        self.folder.mkdir(parents=True, exist_ok=True)
        setting = Setting(
            release=self.target.asked or self.target.name,
            words=["--profile", "nightly", *self.asked.words],
            under=self.asked.under,
            folder=tempfile.mkdtemp(dir=self.folder),
            corpus=str(place),
            device=self.target.device,
        )
        log = self.folder / "worker.log"
        python = self.target.python
        self.worker = SliceWorker(python, setting, self.asked.folders, self.asked.place, log)

    def stop(self) -> None:
        self.ready = False
        if self.worker is not None:
            self.worker.end()
            self.worker = None

    def end(self) -> None:
        self.over = True
        self.stop()

    def met(self, said: Collected) -> None:
        """What a worker collected; one in place of another counts the same tests anew."""
        self.code, self.versions = said.code, said.versions
        by_name = {state.test.name: state for state in self.states}
        for test in said.tests:
            if test.name in by_name:
                by_name[test.name].test = test
            else:
                tested = Tally(test.name, self.target.name, left_out=test.left_out)
                self.states.append(State(test, tested))
        self.ready = True

    def share(self, now: float, until: float) -> None:
        """Its part of the time begins."""
        self.until = until
        self.schedule = Schedule(self.states, self.asked.jobs, until - now)

    def next(self) -> tuple[State, list[str]] | None:
        """The test that is next, and the examples that come first in it."""
        assert self.schedule is not None
        if self.again:
            state, blob = self.again.pop(0)
            return state, [blob]
        state_or_none = self.schedule.next()
        return None if state_or_none is None else (state_or_none, [])

    def slice(self, state: State, first: list[str], seed: int) -> Slice:
        """Have the worker run a test for a while."""
        assert self.schedule is not None
        assert self.worker is not None
        now = time.monotonic()
        self.serial += 1
        generate = min(self.until, now + self.schedule.slice)
        shrink = min(generate + SHRINK, max(self.until, now + 1.0) + GRACE / 2)
        asked = Slice(
            number=state.test.number,
            serial=self.serial,
            seed=seed,
            memory=self.asked.memory,
            generate_until=generate,
            shrink_until=shrink,
            # Whoever hangs is found by its example; this is for who cannot even say so.
            end_after=shrink - now + self.asked.limit + 30.0,
            known=self._known(state.test.name, set(first)),
            first=first,
            before=state.tested.examples,
        )
        state.running += 1
        self.running[asked.serial] = Running(state, asked)
        self.worker.tell(asked)
        return asked

    def _known(self, test: str, first: set[str]) -> list[str]:
        """What a slice need not find again; what it is to shrink it has to find."""
        return [
            key
            for (name, key), kept in self.kept.items()
            if name == test and kept.repro.blob not in first
        ]

    def shrink_later(self, state: State, key: str, blob: str) -> None:
        self.attempts[key] += 1
        if self.attempts[key] <= ATTEMPTS:
            self.again.append((state, blob))


def covered(lane: Lane) -> list[Covered]:
    """How much of each file has run, over all tests of a release."""
    rows = []
    for file in lane.code:
        ran: set[int] = set()
        for state in lane.states:
            ran |= state.covered.get(file.path, set())
        toggled, lines = ran & set(file.toggled), ran & set(file.lines)
        rows.append(
            Covered(
                release=lane.target.name,
                file=file.name,
                toggled=len(toggled),
                toggled_of=len(file.toggled),
                lines=len(lines),
                lines_of=len(file.lines),
            )
        )
    return rows
