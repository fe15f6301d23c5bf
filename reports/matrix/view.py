"""A matrix run as every report shows it: what failed, by which value, what was slow."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from harness.store.matrix.values import MISSING, MatrixRun, Outcome, RanCell, counted, failures
from reports.shared import texts
from reports.shared.texts import Mark, line, shorten

MARKS: dict[str, Mark] = {
    mark.word: mark
    for mark in (
        Mark("crash", "CRA", "✖", "death", "Its process was ended by a signal."),
        Mark("hang", "HNG", "∞", "death", "It ran past its limit, and was ended."),
        Mark("red", "RED", "✕", "broken", "It ended with 1: a verdict says no."),
        Mark("error", "ERR", "!", "broken", "It ended with 2, or with a code that says nothing."),
        Mark("flaky", "FLK", "≈", "toothless", "It failed, and passed when it was run again."),
        Mark("lost", "LST", "?", "unreached", "Whoever ran it died, each time that it was run."),
        Mark("not-ready", "NRD", "○", "stale", "It ended with 3, or there was no place for it."),
        Mark("missing", "???", "…", "missing", "The run ended before it did."),
        Mark("green", "ok", "✓", "good", "It ended with 0, the first time that it could."),
    )
}
SLOWEST = 12
TAIL_LINES = 12


@dataclass(frozen=True)
class Share:
    """The cells that have one value of an axis."""

    value: str
    counts: dict[str, int]  # by outcome, the worst first

    @property
    def cells(self) -> int:
        return sum(self.counts.values())

    @property
    def green(self) -> int:
        return self.counts.get(Outcome.GREEN, 0)

    @property
    def percent(self) -> float:
        return 100 * self.green / self.cells

    @property
    def told(self) -> str:
        return f"{self.green}/{self.cells}"


@dataclass(frozen=True)
class Axis:
    name: str
    shares: list[Share]  # the least green first


@dataclass(frozen=True)
class MatrixView:
    run: MatrixRun
    counts: list[tuple[Mark, int]]  # what is green first, then from the worst down
    failures: list[RanCell]
    axes: list[Axis]  # where values differ most first
    slowest: list[RanCell]
    rerun: int  # cells that lost a machine and were run again

    @property
    def green(self) -> bool:
        return self.run.green

    @property
    def statement(self) -> str:
        """What it comes to, in one sentence."""
        if self.green:
            return f"Every one of {counted(len(self.run.cells), 'cell')} is green."
        problems = self.run.problems
        return (
            f"{problems[0][0].upper()}{problems[0][1:]}."
            if len(problems) == 1
            else (
                f"{counted(len(self.failures), 'cell')} of {len(self.run.cells)} "
                f"{'is' if len(self.failures) == 1 else 'are'} not green."
            )
        )

    @property
    def facts(self) -> list[tuple[str, str]]:
        run = self.run
        where = {"local": "one machine", "ray": "a Ray cluster"}.get(run.where, run.where)
        facts = [
            ("started", texts.when(run.started)),
            ("took", texts.duration(run.seconds)),
            ("cells' own time", texts.duration(sum(cell.seconds for cell in run.cells))),
        ]
        if run.device_seconds:
            facts.append(("device time", texts.duration(run.device_seconds)))
        if gpu := run.machine.get("gpu"):
            facts.append(("GPU", line(gpu)))
        if sglang := run.machine.get("sglang"):
            facts.append(("SGLang beside it", line(sglang)))
        facts += [("on", line(where)), ("plan", line(run.plan))]
        if run.of > 1:
            facts.append(("shard", f"{run.number}/{run.of} of {counted(run.total, 'cell')}"))
        if self.rerun:
            facts.append(("lost, then rerun", counted(self.rerun, "cell")))
        return [*facts, ("run", f"{line(run.id, 200)}, {run.status}")]


def make(run: MatrixRun) -> MatrixView:
    counts = run.counts
    order = ["green", *(word for word in MARKS if word != "green")]
    timed = sorted((cell for cell in run.cells if cell.seconds), key=lambda one: -one.seconds)
    return MatrixView(
        run=run,
        counts=[(MARKS[word], counts[word]) for word in order if counts.get(word)],
        failures=failures(run.cells),
        axes=_axes(run),
        slowest=timed[:SLOWEST],
        rerun=sum(bool(cell.lost) and cell.word != Outcome.LOST for cell in run.cells),
    )


def _axes(run: MatrixRun) -> list[Axis]:
    """Axes on which every cell has the same value tell nothing, and are left out."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for cell in run.cells:
        for axis, value in (*cell.values.items(), (WORK, cell.work)):
            counts = found.setdefault(axis, {}).setdefault(value, {})
            counts[cell.word] = counts.get(cell.word, 0) + 1
    axes = [
        Axis(name, sorted((_share(*one) for one in values.items()), key=lambda one: one.percent))
        for name, values in found.items()
        if len(values) > 1
    ]
    return sorted(axes, key=lambda axis: axis.shares[0].percent - axis.shares[-1].percent)


WORK = "what runs"


def _share(value: str, counts: dict[str, int]) -> Share:
    return Share(value, {word: counts[word] for word in MARKS if counts.get(word)})


def values(cell: RanCell) -> str:
    return ", ".join(f"{line(axis, 30)} {line(value, 40)}" for axis, value in cell.values.items())


def how(cell: RanCell) -> str:
    """Each attempt in a few words: 'exit code 1, then exit code 0'."""
    if not cell.attempts:
        return "not run"
    told = ", then ".join(line(one.how, 200) for one in cell.attempts)
    return told if cell.outcome else f"{told}, then not run again"


def telling(cell: RanCell) -> str:
    """The end of the log that says most: of a flaky cell that of the attempt that failed."""
    attempts = [one for one in cell.attempts if one.outcome is not Outcome.GREEN and one.output]
    return attempts[-1].output if attempts else ""


def tail(cell: RanCell, lines: int = TAIL_LINES, most: int = 2000) -> str:
    shown = texts.visible(telling(cell)).rstrip().splitlines()
    cut = "\n".join(shown[-lines:])
    return cut[-most:]


def inside(cell: RanCell) -> str:
    counts = cell.attempts[-1].inside if cell.attempts else {}
    return ", ".join(f"{number} {line(word, 30)}" for word, number in counts.items())


def replay(run: MatrixRun, cell: RanCell) -> str:
    """The line that runs this cell again."""
    words = ["unfix", "matrix", "run", run.file, "--cell", cell.identity]
    return line(shlex.join(words), 400)


def command(cell: RanCell) -> str:
    return shorten(shlex.join(cell.command), 400)


def flaky(cells: Iterable[RanCell]) -> list[RanCell]:
    return [cell for cell in cells if cell.outcome is Outcome.FLAKY]


def took(cell: RanCell) -> str:
    return texts.duration(cell.seconds) if cell.seconds else ""


assert set(MARKS) == {*Outcome, MISSING}
