"""A stored run of a matrix: its cells, and every attempt at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from harness.core.outcomes import DEATHS, Outcome, RunStatus, require_word
from harness.core.wording import format_count
from harness.store.run_table import ShardNumber

# The ends of an attempt in which the command itself went wrong.
FAILURES = (Outcome.FAILED, Outcome.ERROR, *DEATHS)
# These say nothing about the configuration: a resumed run repeats such cells.
INCONCLUSIVE_OUTCOMES = (Outcome.NOT_READY, Outcome.LOST)
ATTEMPT_OUTCOMES = (Outcome.PASSED, *FAILURES, *INCONCLUSIVE_OUTCOMES)


class CellAttempt(msgspec.Struct, frozen=True):
    """One run of a cell's command."""

    number: int  # from 1, lost attempts included
    outcome: Outcome
    how: str  # such as 'exit code 1', 'SIGSEGV', 'ran past its limit of 10 s'
    started: str  # ISO 8601, UTC
    seconds: float = 0.0
    device_seconds: float = 0.0  # the seconds times the number of its GPUs
    where: str = ""  # the machine
    output: str = ""  # the end of its log
    inside: dict[str, int] = {}  # counts of verdicts, from the command's --json
    last: bool = False  # no further attempt follows in this run

    def __post_init__(self) -> None:
        require_word(self.outcome, ATTEMPT_OUTCOMES)


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
    def outcome(self) -> Outcome | None:
        """Return the outcome of all attempts, or None while the cell is not done."""
        if not self.attempts or not self.attempts[-1].last:
            return None
        last = self.attempts[-1].outcome
        if last is Outcome.PASSED and any(one.outcome in FAILURES for one in self.attempts):
            return Outcome.FLAKY
        return last

    @property
    def is_done(self) -> bool:
        """Return whether a resumed run may skip the cell."""
        return self.outcome is not None and self.outcome not in INCONCLUSIVE_OUTCOMES

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
        return sum(one.outcome is Outcome.LOST for one in self.attempts)


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
    status: RunStatus = RunStatus.RUNNING  # running, finished, stopped
    seconds: float = 0.0
    command: list[str] = []
    commit: str = ""  # of unfix
    machine: dict[str, str] = {}  # the machine of the first process: date, hardware, versions
    where: str = "local"  # or 'ray'; for several shards, their number
    number: ShardNumber = 1
    of: ShardNumber = 1
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
        problems += self.status.problems
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
        bad = set(self.counts) - {Outcome.PASSED}
        return 3 if bad == {Outcome.NOT_READY} and self.status is RunStatus.FINISHED else 1


_OUTCOME_PHRASES = {
    Outcome.FAILED: "failed",
    Outcome.ERROR: "ended in an error",
    Outcome.SEGFAULT: "ended in a segmentation fault",
    Outcome.ABORT: "aborted",
    Outcome.SIGNAL: "ended by a signal",
    Outcome.OUT_OF_MEMORY: "ran out of memory",
    Outcome.CUDA_ERROR: "ended in an error of CUDA",
    Outcome.HANG: "ran past the limit",
    Outcome.FLAKY: "failed and then passed: flaky, and not green",
    Outcome.LOST: "lost each machine that ran it",
    Outcome.NOT_READY: "had no place ready to run",
    MISSING: "without an outcome",
}


def sort_failures(cells: Iterable[MatrixCellResult]) -> list[MatrixCellResult]:
    """Return the cells that are not green, the worst outcome first. The order is stable."""
    places = {word: place for place, word in enumerate(WORST_FIRST)}
    bad = [cell for cell in cells if cell.outcome_word != Outcome.PASSED]
    return sorted(bad, key=lambda cell: places[cell.outcome_word])


WORST_FIRST = (
    *DEATHS,
    *(Outcome.FAILED, Outcome.ERROR, Outcome.FLAKY, Outcome.LOST, Outcome.NOT_READY),
    MISSING,
    Outcome.PASSED,
)
