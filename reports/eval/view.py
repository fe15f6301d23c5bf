"""An evaluation as every report shows it: what was served, what differs, who noticed a fault."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.store.eval.values import Answer, Compared, Evaluation, Fault, Judged, Served
from reports.shared import texts
from reports.shared.texts import Mark

JUDGED = {
    Judged.SAME: Mark("same", "ok", "✓", "good", "A change of the tolerance is excluded."),
    Judged.IMPROVED: Mark("improved", "up", "↑", "fix", "More was gained than lost."),
    Judged.EQUAL: Mark("equal", "eq", "=", "good", "Each token is the same, within the noise."),
    Judged.NEAR_TIE: Mark(
        "near-tie", "tie", "≈", "good", "A token differs where the base was as near to the other."
    ),
    Judged.REGRESSED: Mark("regressed", "down", "↓", "broken", "More was lost than gained."),
    Judged.DIFFERS: Mark("differs", "dif", "≠", "broken", "A token differs, and not by noise."),
    Judged.DRIFTS: Mark(
        "drifts", "drift", "~", "toothless", "Logprobs differ by more than the noise."
    ),
    Judged.CANNOT_TELL: Mark("cannot-tell", "?", "?", "unreached", "The items do not tell."),
    Judged.FAILED: Mark("failed", "fail", "✖", "death", "One of the two was not served."),
    Judged.HANG: Mark("hang", "hang", "∞", "death", "It lived and answered no more."),
    Judged.NA: Mark("n/a", "n/a", "-", "quiet", "This does not apply here."),
}
SERVED = Mark("served", "ok", "✓", "good", "It answered.")
ERRORS = Mark("errors", "err", "✕", "broken", "Some of its answers are errors.")
FAILED = Mark("failed", "fail", "✖", "death", "It did not get ready, or died.")
ABSENT = Mark("n/a", "n/a", "-", "quiet", "It cannot be run here.")
SILENT = Mark("no answers", "none", "?", "unreached", "It answered nothing, for no reason given.")

CAUGHT = Mark("caught", "ok", "✓", "good", "A comparison shows it.")
MISSED = Mark("missed", "miss", "○", "toothless", "It was to be noticed, and nobody did.")
UNREACHED = Mark(
    "unreached", "unr", "?", "unreached", "It was to be noticed, and its code never ran."
)
QUIET = Mark("not seen", "quiet", "·", "quiet", "Nobody noticed, and nobody had to.")
FAULTS = (CAUGHT, MISSED, UNREACHED, QUIET, ABSENT)

Z = 1.96  # for the intervals of one accuracy: 95 %
REASON = 300  # letters of a reason; a whole log may be in it


@dataclass(frozen=True)
class Score:
    """The answers of one configuration to one task."""

    right: int
    items: int
    unscored: int  # of those, errors among them

    @property
    def share(self) -> float:
        return self.right / self.items

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, whatever the answers that are not there would have been."""
        return _wilson(self.right, self.items)[0], _wilson(self.right + self.unscored, self.items)[
            1
        ]

    @property
    def told(self) -> str:
        if self.unscored == self.items:
            return f"- of {self.items}"
        return f"{self.right}/{self.items}"


@dataclass(frozen=True)
class Configuration:
    served: Served
    mark: Mark
    meant: bool  # a fault was put in on purpose
    scores: dict[str, Score]  # by task; without those it was not asked
    errors: int
    why: str  # there are no answers, or not all of them

    @property
    def tone(self) -> str:
        return _tone(self.mark, self.meant)

    @property
    def name(self) -> str:
        return texts.line(self.served.name)

    @property
    def toggled(self) -> str:
        taken = [("out", self.served.revert), ("in", self.served.enable)]
        return "; ".join(f"{', '.join(names)} {way}" for way, names in taken if names)

    @property
    def told(self) -> str:
        """What has to be known of it beside numbers: why it has none, what was not the real one."""
        parts = [self.why, self.toggled, *self.served.stand_ins]
        return texts.line("; ".join(part for part in parts if part), REASON)

    @property
    def accepted(self) -> str:
        return "" if self.served.accepted is None else f"{self.served.accepted:.2f}"

    @property
    def ready(self) -> str:
        return texts.duration(self.served.ready) if self.served.ready else ""


@dataclass(frozen=True)
class Pairing:
    """One comparison."""

    compared: Compared
    mark: Mark
    meant: bool

    @property
    def tone(self) -> str:
        return _tone(self.mark, self.meant)

    @property
    def names(self) -> str:
        return f"{texts.line(self.compared.base)} → {texts.line(self.compared.candidate)}"

    @property
    def task(self) -> str:
        return texts.line(self.compared.task) or "all"

    @property
    def measure(self) -> str:
        """A drop with its interval, or a divergence beside the noise."""
        one = self.compared
        if one.kind == "tokens":
            return f"{number(one.divergence)} / {number(one.noise)}"
        if one.drop is None:
            return "-"
        if one.low is None or one.high is None:
            return f"{one.drop:+.1%}"
        return f"{one.drop:+.1%} [{one.low:+.1%}, {one.high:+.1%}]"

    @property
    def counts(self) -> str:
        one = self.compared
        parts = [f"{one.items} items"]
        parts += [f"{one.lost} lost, {one.gained} gained"] if one.kind != "tokens" else []
        parts += [f"{one.errors} errors"] if one.errors else []
        return ", ".join(parts)

    @property
    def differing(self) -> int:
        """Items that differ; of very many not all are kept."""
        one = self.compared
        counted = 0 if one.kind == "tokens" else one.lost + one.gained + one.errors
        return max(counted, len(one.differences))

    @property
    def words(self) -> str:
        return texts.line(self.compared.words, REASON)


@dataclass(frozen=True)
class FaultRow:
    fault: Fault
    mark: Mark

    @property
    def by(self) -> str:
        told = "; ".join(self.fault.by) or ("nobody" if not self.fault.absent else "")
        return texts.line(self.fault.absent or told, REASON)

    @property
    def ran(self) -> str:
        return f"{self.fault.reach}x" if self.fault.reach else "never"


@dataclass(frozen=True)
class EvalView:
    evaluation: Evaluation
    green: bool
    problems: list[str]
    tasks: list[str]
    configurations: list[Configuration]
    pairings: list[Pairing]  # what is open first, what was broken on purpose last
    faults: list[FaultRow]
    counts: list[tuple[Mark, int]]  # of comparisons, those with a fault aside

    @property
    def statement(self) -> str:
        """What it comes to, in one sentence."""
        if not self.green:
            one = self.problems[0] if self.problems else ""
            return one if len(self.problems) == 1 else f"{len(self.problems)} things are open."
        count = sum(number for mark, number in self.counts if mark is not JUDGED[Judged.NA])
        said = f"{count} comparisons, and nothing beyond chance and noise."
        return f"{said} {self.noticed}." if self.faults else said

    @property
    def noticed(self) -> str:
        """How many of the faults that have to be caught were, and what of the others."""
        must = [row.fault.caught for row in self.faults if row.fault.expected]
        others = [row.fault.caught for row in self.faults if not row.fault.expected]
        said = f"{sum(must)} of {len(must)} faults caught"
        return f"{said} ({sum(others)} of {len(others)} that need not be)" if others else said

    @property
    def started(self) -> str:
        moment = datetime.datetime.fromtimestamp(self.evaluation.started, datetime.UTC)
        return texts.when(moment.isoformat())

    @property
    def asked(self) -> list[tuple[str, str]]:
        """What was asked, and what so many items can tell."""
        one = self.evaluation
        facts = [
            ("device", one.device),
            ("items", f"{one.items} a task, seed {one.seed}"),
            ("false alarms", f"{one.alpha:.3g}, shared by {one.cells} comparisons"),
        ]
        if one.smallest_drop is not None:
            facts.append(("finds", f"a drop of {one.smallest_drop:.1%}, 95 times in 100"))
        return facts


def make(evaluation: Evaluation) -> EvalView:
    meant = evaluation.meant
    pairings = [
        Pairing(one, JUDGED[one.verdict], one.candidate in meant) for one in evaluation.compared
    ]
    bad = {id(one) for one in evaluation.bad}
    pairings.sort(key=lambda pairing: (pairing.meant, id(pairing.compared) not in bad))
    problems = evaluation.problems
    counts = Counter(pairing.compared.verdict for pairing in pairings if not pairing.meant)
    return EvalView(
        evaluation=evaluation,
        green=not problems,
        problems=[texts.line(problem, REASON) for problem in problems],
        tasks=list(dict.fromkeys(task for one in evaluation.served for task in one.tasks)),
        configurations=[_configuration(one, one.name in meant) for one in evaluation.served],
        pairings=pairings,
        faults=[FaultRow(fault, _fault(fault)) for fault in evaluation.faults],
        counts=[(JUDGED[verdict], counts[verdict]) for verdict in Judged if counts[verdict]],
    )


def _configuration(served: Served, meant: bool) -> Configuration:
    errors = sum(bool(answer.error) for answer in served.answers)
    why = served.failure or served.absent
    if served.failure:
        mark = FAILED
    elif not served.answers:
        mark = ABSENT if served.absent else SILENT
        why = why or "answered nothing"
    else:
        mark = ERRORS if errors else SERVED
    scores = {task: _score(served.of(task)) for task in served.tasks}
    return Configuration(served, mark, meant, scores, errors, why)


def _score(answers: Sequence[Answer]) -> Score:
    said = [None if answer.error else answer.right for answer in answers]
    return Score(said.count(True), len(said), said.count(None))


def _fault(fault: Fault) -> Mark:
    if fault.caught:
        return CAUGHT
    if fault.absent:
        return ABSENT
    if not fault.expected:
        return QUIET
    return MISSED if fault.reach else UNREACHED


def _tone(mark: Mark, meant: bool) -> str:
    """What goes wrong on purpose is shown, and not as an alarm."""
    return mark.tone if not meant else "quiet" if mark.good else "bug"


def _wilson(right: int, items: int) -> tuple[float, float]:
    share, square = right / items, Z * Z / items
    middle = share + square / 2
    half = Z * math.sqrt(share * (1 - share) / items + square / items / 4)
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return max(0.0, low), min(1.0, high)


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2g}" if math.isfinite(value) else "no number"
