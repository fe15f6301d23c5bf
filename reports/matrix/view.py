"""A matrix run as every report shows it: the failures, the values they share, the slowest cells."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.core.outcomes import Outcome
from harness.core.wording import format_count, format_duration
from harness.store.matrix.values import WORST_FIRST, MatrixCellResult, MatrixRun, sort_failures
from reports.shared import formatting
from reports.shared.formatting import shorten_text, to_single_line
from reports.shared.marks import ReportMark, make_marks

OUTCOME_MARKS = make_marks("""
    segfault  | SEG | ✖ | death     | A segmentation fault ended it.
    abort     | ABR | ✖ | death     | It aborted its process.
    signal    | SIG | ✖ | death     | Another signal ended it.
    hang      | HNG | ∞ | death     | It ran past its limit, and was killed.
    out-of-memory | OOM | ▣ | death | The kernel killed it for lack of memory.
    cuda-error| CUD | ✖ | death     | It ended in an error of CUDA.
    failed    | ✕   | ✕ | broken    | It ended with 1: a verdict failed.
    error     | ERR | ! | broken    | It ended with 2, or with an unknown exit code.
    flaky     | FLK | ≈ | toothless | It failed, and passed when it was run again.
    lost      | LST | ? | unreached | Its machine died in each attempt.
    not-ready | NRD | ○ | stale     | It ended with 3, or no machine could run it.
    missing   | ??? | … | missing   | The run ended before it did.
    passed    | ok  | ✓ | good      | It ended with 0, in the first attempt that was not lost.
""")
MAX_SLOWEST = 12
TAIL_LINES = 12
TAIL_LETTERS = 2000


@dataclass(frozen=True)
class AxisValueShare:
    """The cells that have one value of an axis."""

    value: str
    counts: dict[str, int]  # by outcome, the worst first

    @property
    def cell_count(self) -> int:
        return sum(self.counts.values())

    @property
    def passed_count(self) -> int:
        return self.counts.get(Outcome.PASSED, 0)

    @property
    def percent(self) -> float:
        return 100 * self.passed_count / self.cell_count

    @property
    def fraction_text(self) -> str:
        return f"{self.passed_count}/{self.cell_count}"


@dataclass(frozen=True)
class MatrixAxis:
    name: str
    shares: list[AxisValueShare]  # the one with the fewest passed cells first


@dataclass(frozen=True)
class MatrixView:
    run: MatrixRun
    counts: list[tuple[ReportMark, int]]  # passed first, then from the worst to the mildest
    failures: list[MatrixCellResult]
    axes: list[MatrixAxis]  # the axis whose values differ most first
    slowest: list[MatrixCellResult]
    rerun_count: int  # cells whose machine died and that ran on another one

    @property
    def green(self) -> bool:
        return self.run.green

    @property
    def statement(self) -> str:
        """The outcome in one sentence."""
        if self.green:
            return f"Every one of {format_count(len(self.run.cells), 'cell')} is green."
        problems = self.run.problems
        if len(problems) == 1:
            return f"{problems[0][0].upper()}{problems[0][1:]}."
        verb = "is" if len(self.failures) == 1 else "are"
        failures = format_count(len(self.failures), "cell")
        return f"{failures} of {len(self.run.cells)} {verb} not green."

    @property
    def facts(self) -> list[tuple[str, str]]:
        run = self.run
        where = {"local": "one machine", "ray": "a Ray cluster"}.get(run.where, run.where)
        facts = [
            ("started", formatting.format_time(run.started)),
            ("took", format_duration(run.seconds)),
            ("cells' own time", format_duration(sum(cell.seconds for cell in run.cells))),
        ]
        if run.device_seconds:
            facts.append(("device time", format_duration(run.device_seconds)))
        if gpu := run.machine.get("gpu"):
            facts.append(("GPU", to_single_line(gpu)))
        if sglang := run.machine.get("sglang"):
            facts.append(("SGLang beside it", to_single_line(sglang)))
        facts += [("on", to_single_line(where)), ("plan", to_single_line(run.plan))]
        if run.of > 1:
            facts.append(("shard", f"{run.number}/{run.of} of {format_count(run.total, 'cell')}"))
        if self.rerun_count:
            facts.append(("lost, then rerun", format_count(self.rerun_count, "cell")))
        return [*facts, ("run", f"{to_single_line(run.id, 200)}, {run.status}")]


def make_view(run: MatrixRun) -> MatrixView:
    counts = run.counts
    order = ["passed", *(word for word in OUTCOME_MARKS if word != "passed")]
    timed = sorted(
        (cell for cell in run.cells if cell.seconds), key=lambda timed_cell: -timed_cell.seconds
    )
    return MatrixView(
        run=run,
        counts=[(OUTCOME_MARKS[word], counts[word]) for word in order if counts.get(word)],
        failures=sort_failures(run.cells),
        axes=_make_axes(run),
        slowest=timed[:MAX_SLOWEST],
        rerun_count=sum(
            bool(cell.lost_attempt_count) and cell.outcome_word != Outcome.LOST
            for cell in run.cells
        ),
    )


def _make_axes(run: MatrixRun) -> list[MatrixAxis]:
    """Make every axis that has more than one value."""
    outcomes: dict[str, dict[str, Counter[str]]] = {}
    for cell in run.cells:
        for axis, value in (*cell.values.items(), (WORK_AXIS, cell.work)):
            outcomes.setdefault(axis, {}).setdefault(value, Counter())[cell.outcome_word] += 1
    axes = []
    for name, values in outcomes.items():
        shares = [_make_share(value, counts) for value, counts in values.items()]
        if len(shares) > 1:
            axes.append(MatrixAxis(name, sorted(shares, key=lambda share: share.percent)))
    return sorted(axes, key=lambda axis: axis.shares[0].percent - axis.shares[-1].percent)


WORK_AXIS = "what runs"


def _make_share(value: str, counts: Mapping[str, int]) -> AxisValueShare:
    return AxisValueShare(value, {word: counts[word] for word in OUTCOME_MARKS if counts.get(word)})


def format_values(cell: MatrixCellResult) -> str:
    return ", ".join(
        f"{to_single_line(axis, 30)} {to_single_line(value, 40)}"
        for axis, value in cell.values.items()
    )


def describe_attempts(cell: MatrixCellResult) -> str:
    """Describe each attempt in a few words: 'exit code 1, then exit code 0'."""
    if not cell.attempts:
        return "not run"
    attempts = ", then ".join(to_single_line(attempt.how, 200) for attempt in cell.attempts)
    return attempts if cell.outcome else f"{attempts}, then not run again"


def choose_output(cell: MatrixCellResult) -> str:
    """Choose the end of the log of the last attempt that failed."""
    failed = (
        attempt for attempt in reversed(cell.attempts) if attempt.outcome is not Outcome.PASSED
    )
    return next((attempt.output for attempt in failed if attempt.output), "")


def get_output_tail(cell: MatrixCellResult, lines: int = TAIL_LINES) -> str:
    output = formatting.make_visible(choose_output(cell)).rstrip().splitlines()
    return "\n".join(output[-lines:])[-TAIL_LETTERS:]


def format_inside_counts(cell: MatrixCellResult) -> str:
    counts = cell.attempts[-1].inside if cell.attempts else {}
    return ", ".join(f"{number} {to_single_line(word, 30)}" for word, number in counts.items())


def make_replay_command(run: MatrixRun, cell: MatrixCellResult) -> str:
    """Make the command that runs this cell again."""
    words = ["unfix", "matrix", "run", run.file, "--cell", cell.identity]
    return to_single_line(shlex.join(words), 400)


def format_command(cell: MatrixCellResult) -> str:
    return shorten_text(shlex.join(cell.command), 400)


def list_flaky_cells(cells: Iterable[MatrixCellResult]) -> list[MatrixCellResult]:
    return [cell for cell in cells if cell.outcome is Outcome.FLAKY]


def format_time_taken(cell: MatrixCellResult) -> str:
    return format_duration(cell.seconds) if cell.seconds else ""


assert set(OUTCOME_MARKS) == {*WORST_FIRST}
