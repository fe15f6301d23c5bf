"""What a run of a matrix leaves behind, as values: its cells, and each attempt at one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """How an attempt at a cell ended; of a cell, what its attempts come to."""

    GREEN = "green"  # exit 0
    FLAKY = "flaky"  # of a cell alone: green at last, after its command had failed
    RED = "red"  # exit 1: a verdict says no
    ERROR = "error"  # exit 2, or any other code that is none of these
    NOT_READY = "not-ready"  # exit 3, or there is no place for it to run
    CRASH = "crash"  # ended by a signal
    HANG = "hang"  # ran past its limit
    LOST = "lost"  # whoever ran it died, the command itself said nothing

    @property
    def failed(self) -> bool:
        """Whether the command itself went wrong."""
        return self in (Outcome.RED, Outcome.ERROR, Outcome.CRASH, Outcome.HANG)

    @property
    def tells(self) -> bool:
        """Whether it says anything of the configuration: what does not is run again by a resume."""
        return self not in (Outcome.NOT_READY, Outcome.LOST)


class Attempt(msgspec.Struct, frozen=True):
    """One time that a cell's command was run."""

    number: int  # from 1, those that were lost included
    outcome: Outcome
    how: str  # in a few words: 'exit code 1', 'SIGSEGV', 'ran past its limit of 10 s'
    started: str  # ISO 8601, UTC
    seconds: float = 0.0
    device_seconds: float = 0.0  # the same for each GPU that it held
    where: str = ""  # the machine
    output: str = ""  # the end of its log
    inside: dict[str, int] = {}  # what the command's own --json counts, by verdict
    last: bool = False  # no further attempt follows in this run


class RanCell(msgspec.Struct):
    """A cell as the store keeps it."""

    identity: str
    values: dict[str, str]
    work: str
    command: list[str]
    why: str
    expected: float | None = None
    attempts: list[Attempt] = []

    @property
    def outcome(self) -> Outcome | None:
        """None: not done yet."""
        if not self.attempts or not self.attempts[-1].last:
            return None
        last = self.attempts[-1].outcome
        if last is Outcome.GREEN and any(one.outcome.failed for one in self.attempts):
            return Outcome.FLAKY
        return last

    @property
    def done(self) -> bool:
        """Whether there is nothing left to find out by running it."""
        return self.outcome is not None and self.outcome.tells

    @property
    def word(self) -> str:
        return self.outcome.value if self.outcome else MISSING

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.attempts)

    @property
    def device_seconds(self) -> float:
        return sum(one.device_seconds for one in self.attempts)

    @property
    def lost(self) -> int:
        return sum(one.outcome is Outcome.LOST for one in self.attempts)


MISSING = "missing"


class MatrixRun(msgspec.Struct):
    """One call of `unfix matrix run`, or several shards' seen as one."""

    id: str
    name: str  # the matrix's own
    file: str  # as it was given, for the lines that run a cell again
    plan: str  # the digest
    total: int  # cells of the whole plan
    axes: dict[str, list[str]]
    started: str
    status: str = "running"  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    commit: str = ""  # unfix's own
    machine: dict[str, str] = {}  # what started it: date, hardware, versions beside unfix
    where: str = "local"  # or 'ray'; of several seen as one, how many they are
    number: int = 1  # which shard
    of: int = 1
    only: list[str] = []  # the cells that were asked for by name; such a run is no shard
    notes: list[str] = []  # what a reader has to know: resources that no node has
    cells: list[RanCell] = []

    @property
    def counts(self) -> dict[str, int]:
        """Cells by outcome; 'missing' for those without one."""
        return dict(Counter(cell.word for cell in self.cells))

    @property
    def shard(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def summary(self) -> str:
        told = ", ".join(f"{count} {word}" for word, count in self.counts.items()) or "no cells"
        share = f" {self.shard}" if self.of > 1 else ""
        return f"{self.name}{share}: {told}"

    @property
    def device_seconds(self) -> float:
        return sum(cell.device_seconds for cell in self.cells)

    @property
    def problems(self) -> list[str]:
        """Everything that keeps it from being green."""
        counts = self.counts
        found = [
            f"{counted(counts[outcome], 'cell')} {_ENDED[outcome]}"
            for outcome in WORST
            if outcome in _ENDED and outcome in counts
        ]
        if self.status != "finished":
            found.append(
                "the run is still going on" if self.status == "running" else "the run was stopped"
            )
        if not self.cells and self.of == 1:
            found.append("no cell was run: nothing is shown")
        return found

    @property
    def green(self) -> bool:
        return not self.problems

    @property
    def exit_code(self) -> int:
        """1 if any cell says no; 3 if all that is wrong is that some had no place to run."""
        if self.green:
            return 0
        bad = set(self.counts) - {Outcome.GREEN}
        return 3 if bad == {Outcome.NOT_READY} and self.status == "finished" else 1


_ENDED = {
    Outcome.RED: "said no",
    Outcome.ERROR: "ended in an error",
    Outcome.CRASH: "crashed",
    Outcome.HANG: "ran past the limit",
    Outcome.FLAKY: "failed and then passed: flaky, and not green",
    Outcome.LOST: "lost each machine that ran it",
    Outcome.NOT_READY: "had no place ready to run",
    MISSING: "without an outcome",
}


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def failures(cells: Iterable[RanCell]) -> list[RanCell]:
    """Those that are not green, the worst kind first; cells of one kind stay in their order."""
    places = {word: place for place, word in enumerate(WORST)}
    bad = [cell for cell in cells if cell.word != Outcome.GREEN]
    return sorted(bad, key=lambda cell: places[cell.word])


WORST = (
    *(Outcome.CRASH, Outcome.HANG, Outcome.RED, Outcome.ERROR, Outcome.FLAKY, Outcome.LOST),
    *(Outcome.NOT_READY, MISSING, Outcome.GREEN),
)
