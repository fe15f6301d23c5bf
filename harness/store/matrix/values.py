"""A stored run of a matrix: its cells, and every attempt at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from harness.core.wording import format_count
from harness.store.run_status import list_status_problems


class AttemptOutcome(StrEnum):
    """The outcome of an attempt at a cell, or of a cell by all of its attempts."""

    GREEN = "green"  # exit 0
    FLAKY = "flaky"  # only of a cell: the last attempt is green, an earlier one failed
    RED = "red"  # exit 1: a verdict is bad
    ERROR = "error"  # exit 2, or any other code
    NOT_READY = "not-ready"  # exit 3, or no node can run it
    CRASH = "crash"  # ended by a signal
    HANG = "hang"  # ran past its limit
    LOST = "lost"  # the process that ran the command died, with no exit code

    @property
    def is_failure(self) -> bool:
        """Return whether the command itself went wrong."""
        return self in (
            AttemptOutcome.RED,
            AttemptOutcome.ERROR,
            AttemptOutcome.CRASH,
            AttemptOutcome.HANG,
        )

    @property
    def is_conclusive(self) -> bool:
        """Return whether the outcome is about the configuration; a resumed run repeats others."""
        return self not in (AttemptOutcome.NOT_READY, AttemptOutcome.LOST)


class CellAttempt(msgspec.Struct, frozen=True):
    """One run of a cell's command."""

    number: int  # from 1, lost attempts included
    outcome: AttemptOutcome
    how: str  # such as 'exit code 1', 'SIGSEGV', 'ran past its limit of 10 s'
    started: str  # ISO 8601, UTC
    seconds: float = 0.0
    device_seconds: float = 0.0  # the seconds times the number of its GPUs
    where: str = ""  # the machine
    output: str = ""  # the end of its log
    inside: dict[str, int] = {}  # counts of verdicts, from the command's --json
    last: bool = False  # no further attempt follows in this run


class MatrixCellResult(msgspec.Struct):
    """One cell of the matrix, with its attempts."""

    identity: str
    values: dict[str, str]
    work: str
    command: list[str]
    why: str
    expected: float | None = None
    attempts: list[CellAttempt] = []

    @property
    def outcome(self) -> AttemptOutcome | None:
        """Return the outcome of all attempts, or None while the cell is not done."""
        if not self.attempts or not self.attempts[-1].last:
            return None
        last = self.attempts[-1].outcome
        if last is AttemptOutcome.GREEN and any(one.outcome.is_failure for one in self.attempts):
            return AttemptOutcome.FLAKY
        return last

    @property
    def is_done(self) -> bool:
        """Return whether a resumed run may skip the cell."""
        return self.outcome is not None and self.outcome.is_conclusive

    @property
    def outcome_word(self) -> str:
        return self.outcome.value if self.outcome else MISSING

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.attempts)

    @property
    def device_seconds(self) -> float:
        return sum(one.device_seconds for one in self.attempts)

    @property
    def lost_attempt_count(self) -> int:
        return sum(one.outcome is AttemptOutcome.LOST for one in self.attempts)


MISSING = "missing"


class MatrixRun(msgspec.Struct):
    """One call of `unfix matrix run`, or several shards in one."""

    id: str
    name: str  # the matrix
    file: str  # the path on the command line, for the commands that repeat a cell
    plan: str  # the digest of the plan
    total: int  # cells of the whole plan
    axes: dict[str, list[str]]
    started: str
    status: str = "running"  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    commit: str = ""  # of unfix
    machine: dict[str, str] = {}  # the machine of the first process: date, hardware, versions
    where: str = "local"  # or 'ray'; for several shards, their number
    number: int = 1  # the shard's number
    of: int = 1
    only: list[str] = []  # cells from the command line; such a run is no shard
    notes: list[str] = []  # remarks for the reader, such as resources that no node has
    cells: list[MatrixCellResult] = []

    @property
    def counts(self) -> dict[str, int]:
        """Count the cells by outcome, with 'missing' for cells without one."""
        return dict(Counter(cell.outcome_word for cell in self.cells))

    @property
    def shard(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def summary(self) -> str:
        counts = ", ".join(f"{count} {word}" for word, count in self.counts.items()) or "no cells"
        shard = f" {self.shard}" if self.of > 1 else ""
        return f"{self.name}{shard}: {counts}"

    @property
    def device_seconds(self) -> float:
        return sum(cell.device_seconds for cell in self.cells)

    @property
    def problems(self) -> list[str]:
        """Return every reason why the run is not green."""
        counts = self.counts
        problems = [
            f"{format_count(counts[outcome], 'cell')} {_OUTCOME_PHRASES[outcome]}"
            for outcome in WORST_FIRST
            if outcome in _OUTCOME_PHRASES and outcome in counts
        ]
        problems += list_status_problems(self.status)
        if not self.cells and self.of == 1:
            problems.append("no cell was run: nothing is shown")
        return problems

    @property
    def green(self) -> bool:
        return not self.problems

    @property
    def exit_code(self) -> int:
        """Return 1 if the outcome of any cell is bad, or 3 if some cells only had no node."""
        if self.green:
            return 0
        bad = set(self.counts) - {AttemptOutcome.GREEN}
        return 3 if bad == {AttemptOutcome.NOT_READY} and self.status == "finished" else 1


_OUTCOME_PHRASES = {
    AttemptOutcome.RED: "answered no",
    AttemptOutcome.ERROR: "ended in an error",
    AttemptOutcome.CRASH: "crashed",
    AttemptOutcome.HANG: "ran past the limit",
    AttemptOutcome.FLAKY: "failed and then passed: flaky, and not green",
    AttemptOutcome.LOST: "lost each machine that ran it",
    AttemptOutcome.NOT_READY: "had no place ready to run",
    MISSING: "without an outcome",
}


def sort_failures(cells: Iterable[MatrixCellResult]) -> list[MatrixCellResult]:
    """Return the cells that are not green, the worst outcome first. The order is stable."""
    places = {word: place for place, word in enumerate(WORST_FIRST)}
    bad = [cell for cell in cells if cell.outcome_word != AttemptOutcome.GREEN]
    return sorted(bad, key=lambda cell: places[cell.outcome_word])


WORST_FIRST = (
    AttemptOutcome.CRASH,
    AttemptOutcome.HANG,
    AttemptOutcome.RED,
    AttemptOutcome.ERROR,
    AttemptOutcome.FLAKY,
    AttemptOutcome.LOST,
    AttemptOutcome.NOT_READY,
    MISSING,
    AttemptOutcome.GREEN,
)
