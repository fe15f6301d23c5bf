"""What a run of a matrix leaves behind, as values: its cells, and each attempt at one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from harness.core.wording import format_count


class AttemptOutcome(StrEnum):
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
    def is_failure(self) -> bool:
        """Whether the command itself went wrong."""
        return self in (
            AttemptOutcome.RED,
            AttemptOutcome.ERROR,
            AttemptOutcome.CRASH,
            AttemptOutcome.HANG,
        )

    @property
    def is_conclusive(self) -> bool:
        """Whether it says anything of the configuration: what does not is run again by a resume."""
        return self not in (AttemptOutcome.NOT_READY, AttemptOutcome.LOST)


class CellAttempt(msgspec.Struct, frozen=True):
    """One time that a cell's command was run."""

    number: int  # from 1, those that were lost included
    outcome: AttemptOutcome
    how: str  # in a few words: 'exit code 1', 'SIGSEGV', 'ran past its limit of 10 s'
    started: str  # ISO 8601, UTC
    seconds: float = 0.0
    device_seconds: float = 0.0  # the same for each GPU that it held
    where: str = ""  # the machine
    output: str = ""  # the end of its log
    inside: dict[str, int] = {}  # what the command's own --json counts, by verdict
    last: bool = False  # no further attempt follows in this run


class MatrixCellResult(msgspec.Struct):
    """A cell as the store keeps it."""

    identity: str
    values: dict[str, str]
    work: str
    command: list[str]
    why: str
    expected: float | None = None
    attempts: list[CellAttempt] = []

    @property
    def outcome(self) -> AttemptOutcome | None:
        """None: not done yet."""
        if not self.attempts or not self.attempts[-1].last:
            return None
        last = self.attempts[-1].outcome
        if last is AttemptOutcome.GREEN and any(one.outcome.is_failure for one in self.attempts):
            return AttemptOutcome.FLAKY
        return last

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to find out by running it."""
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
    cells: list[MatrixCellResult] = []

    @property
    def counts(self) -> dict[str, int]:
        """Cells by outcome; 'missing' for those without one."""
        return dict(Counter(cell.outcome_word for cell in self.cells))

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
            f"{format_count(counts[outcome], 'cell')} {_OUTCOME_PHRASES[outcome]}"
            for outcome in WORST_FIRST
            if outcome in _OUTCOME_PHRASES and outcome in counts
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
        bad = set(self.counts) - {AttemptOutcome.GREEN}
        return 3 if bad == {AttemptOutcome.NOT_READY} and self.status == "finished" else 1


_OUTCOME_PHRASES = {
    AttemptOutcome.RED: "said no",
    AttemptOutcome.ERROR: "ended in an error",
    AttemptOutcome.CRASH: "crashed",
    AttemptOutcome.HANG: "ran past the limit",
    AttemptOutcome.FLAKY: "failed and then passed: flaky, and not green",
    AttemptOutcome.LOST: "lost each machine that ran it",
    AttemptOutcome.NOT_READY: "had no place ready to run",
    MISSING: "without an outcome",
}


def sort_failures(cells: Iterable[MatrixCellResult]) -> list[MatrixCellResult]:
    """Those that are not green, the worst kind first; cells of one kind stay in their order."""
    places = {word: place for place, word in enumerate(WORST_FIRST)}
    bad = [cell for cell in cells if cell.outcome_word != AttemptOutcome.GREEN]
    return sorted(bad, key=lambda cell: places[cell.outcome_word])


WORST_FIRST = (
    *(
        AttemptOutcome.CRASH,
        AttemptOutcome.HANG,
        AttemptOutcome.RED,
        AttemptOutcome.ERROR,
        AttemptOutcome.FLAKY,
        AttemptOutcome.LOST,
    ),
    *(AttemptOutcome.NOT_READY, MISSING, AttemptOutcome.GREEN),
)
