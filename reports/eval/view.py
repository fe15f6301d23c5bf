"""An evaluation as every report shows it: what was served, what differs, who noticed a fault."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.store.eval.values import (
    ComparisonResult,
    ComparisonVerdict,
    Evaluation,
    ItemAnswer,
    PlantedFault,
    ServedConfiguration,
)
from reports.shared import formatting
from reports.shared.formatting import ReportMark

JUDGEMENT_MARKS = {
    ComparisonVerdict.SAME: ReportMark(
        "same", "ok", "✓", "good", "A change of the tolerance is excluded."
    ),
    ComparisonVerdict.IMPROVED: ReportMark(
        "improved", "up", "↑", "fix", "More was gained than lost."
    ),
    ComparisonVerdict.EQUAL: ReportMark(
        "equal", "eq", "=", "good", "Each token is the same, within the noise."
    ),
    ComparisonVerdict.NEAR_TIE: ReportMark(
        "near-tie", "tie", "≈", "good", "A token differs where the base was as near to the other."
    ),
    ComparisonVerdict.REGRESSED: ReportMark(
        "regressed", "down", "↓", "broken", "More was lost than gained."
    ),
    ComparisonVerdict.DIFFERS: ReportMark(
        "differs", "dif", "≠", "broken", "A token differs, and not by noise."
    ),
    ComparisonVerdict.DRIFTS: ReportMark(
        "drifts", "drift", "~", "toothless", "Logprobs differ by more than the noise."
    ),
    ComparisonVerdict.CANNOT_TELL: ReportMark(
        "cannot-tell", "?", "?", "unreached", "The items do not tell."
    ),
    ComparisonVerdict.FAILED: ReportMark(
        "failed", "fail", "✖", "death", "One of the two was not served."
    ),
    ComparisonVerdict.HANG: ReportMark(
        "hang", "hang", "∞", "death", "It lived and answered no more."
    ),
    ComparisonVerdict.NA: ReportMark("n/a", "n/a", "-", "quiet", "This does not apply here."),
}
SERVED_MARK = ReportMark("served", "ok", "✓", "good", "It answered.")
ERRORS_MARK = ReportMark("errors", "err", "✕", "broken", "Some of its answers are errors.")
FAILED_MARK = ReportMark("failed", "fail", "✖", "death", "It did not get ready, or died.")
ABSENT_MARK = ReportMark("n/a", "n/a", "-", "quiet", "It cannot be run here.")
SILENT_MARK = ReportMark(
    "no answers", "none", "?", "unreached", "It answered nothing, for no reason given."
)

CAUGHT_MARK = ReportMark("caught", "ok", "✓", "good", "A comparison shows it.")
MISSED_MARK = ReportMark(
    "missed", "miss", "○", "toothless", "It was to be noticed, and nobody did."
)
UNREACHED_MARK = ReportMark(
    "unreached", "unr", "?", "unreached", "It was to be noticed, and its code never ran."
)
UNNOTICED_MARK = ReportMark("not seen", "quiet", "·", "quiet", "Nobody noticed, and nobody had to.")
FAULT_MARKS = (CAUGHT_MARK, MISSED_MARK, UNREACHED_MARK, UNNOTICED_MARK, ABSENT_MARK)

Z_SCORE_95 = 1.96  # for the intervals of one accuracy: 95 %
MAX_REASON_LENGTH = 300  # letters of a reason; a whole log may be in it


@dataclass(frozen=True)
class TaskScore:
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
        return _compute_wilson_interval(self.right, self.items)[0], _compute_wilson_interval(
            self.right + self.unscored, self.items
        )[1]

    @property
    def score_text(self) -> str:
        if self.unscored == self.items:
            return f"- of {self.items}"
        return f"{self.right}/{self.items}"


@dataclass(frozen=True)
class ConfigurationRow:
    served: ServedConfiguration
    mark: ReportMark
    has_planted_fault: bool  # a fault was put in on purpose
    scores: dict[str, TaskScore]  # by task; without those it was not asked
    errors: int
    missing_reason: str  # there are no answers, or not all of them

    @property
    def tone(self) -> str:
        return _choose_tone(self.mark, self.has_planted_fault)

    @property
    def name(self) -> str:
        return formatting.to_single_line(self.served.name)

    @property
    def toggle_summary(self) -> str:
        taken = [("out", self.served.revert), ("in", self.served.enable)]
        return "; ".join(f"{', '.join(names)} {way}" for way, names in taken if names)

    @property
    def remarks(self) -> str:
        """What has to be known of it beside numbers: why it has none, what was not the real one."""
        parts = [self.missing_reason, self.toggle_summary, *self.served.stand_ins]
        return formatting.to_single_line(
            "; ".join(part for part in parts if part), MAX_REASON_LENGTH
        )

    @property
    def accepted_text(self) -> str:
        return "" if self.served.accepted is None else f"{self.served.accepted:.2f}"

    @property
    def ready_text(self) -> str:
        return formatting.format_duration(self.served.ready) if self.served.ready else ""


@dataclass(frozen=True)
class ComparisonRow:
    """One comparison."""

    comparison: ComparisonResult
    mark: ReportMark
    has_planted_fault: bool

    @property
    def tone(self) -> str:
        return _choose_tone(self.mark, self.has_planted_fault)

    @property
    def pair_label(self) -> str:
        return f"{formatting.to_single_line(self.comparison.base)} → {formatting.to_single_line(self.comparison.candidate)}"

    @property
    def task(self) -> str:
        return formatting.to_single_line(self.comparison.task) or "all"

    @property
    def measure(self) -> str:
        """A drop with its interval, or a divergence beside the noise."""
        one = self.comparison
        if one.kind == "tokens":
            return f"{format_number(one.divergence)} / {format_number(one.noise)}"
        if one.drop is None:
            return "-"
        if one.low is None or one.high is None:
            return f"{one.drop:+.1%}"
        return f"{one.drop:+.1%} [{one.low:+.1%}, {one.high:+.1%}]"

    @property
    def counts_text(self) -> str:
        one = self.comparison
        parts = [f"{one.items} items"]
        parts += [f"{one.lost} lost, {one.gained} gained"] if one.kind != "tokens" else []
        parts += [f"{one.errors} errors"] if one.errors else []
        return ", ".join(parts)

    @property
    def differing_count(self) -> int:
        """Items that differ; of very many not all are kept."""
        one = self.comparison
        counted = 0 if one.kind == "tokens" else one.lost + one.gained + one.errors
        return max(counted, len(one.differences))

    @property
    def explanation(self) -> str:
        return formatting.to_single_line(self.comparison.words, MAX_REASON_LENGTH)


@dataclass(frozen=True)
class FaultRow:
    fault: PlantedFault
    mark: ReportMark

    @property
    def detected_by(self) -> str:
        told = "; ".join(self.fault.by) or ("nobody" if not self.fault.absent else "")
        return formatting.to_single_line(self.fault.absent or told, MAX_REASON_LENGTH)

    @property
    def reach_text(self) -> str:
        return f"{self.fault.reach}x" if self.fault.reach else "never"


@dataclass(frozen=True)
class EvalView:
    evaluation: Evaluation
    green: bool
    problems: list[str]
    tasks: list[str]
    configurations: list[ConfigurationRow]
    comparisons: list[ComparisonRow]  # what is open first, what was broken on purpose last
    faults: list[FaultRow]
    counts: list[tuple[ReportMark, int]]  # of comparisons, those with a fault aside

    @property
    def statement(self) -> str:
        """What it comes to, in one sentence."""
        if not self.green:
            one = self.problems[0] if self.problems else ""
            return one if len(self.problems) == 1 else f"{len(self.problems)} things are open."
        count = sum(
            number
            for mark, number in self.counts
            if mark is not JUDGEMENT_MARKS[ComparisonVerdict.NA]
        )
        said = f"{count} comparisons, and nothing beyond chance and noise."
        return f"{said} {self.caught_summary}." if self.faults else said

    @property
    def caught_summary(self) -> str:
        """How many of the faults that have to be caught were, and what of the others."""
        must = [row.fault.caught for row in self.faults if row.fault.expected]
        others = [row.fault.caught for row in self.faults if not row.fault.expected]
        said = f"{sum(must)} of {len(must)} faults caught"
        return f"{said} ({sum(others)} of {len(others)} that need not be)" if others else said

    @property
    def started(self) -> str:
        moment = datetime.datetime.fromtimestamp(self.evaluation.started, datetime.UTC)
        return formatting.format_time(moment.isoformat())

    @property
    def settings(self) -> list[tuple[str, str]]:
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


def make_view(evaluation: Evaluation) -> EvalView:
    meant = evaluation.planted_names
    pairings = [
        ComparisonRow(one, JUDGEMENT_MARKS[one.verdict], one.candidate in meant)
        for one in evaluation.compared
    ]
    bad = {id(one) for one in evaluation.failed_comparisons}
    pairings.sort(
        key=lambda pairing: (pairing.has_planted_fault, id(pairing.comparison) not in bad)
    )
    problems = evaluation.problems
    counts = Counter(
        pairing.comparison.verdict for pairing in pairings if not pairing.has_planted_fault
    )
    return EvalView(
        evaluation=evaluation,
        green=not problems,
        problems=[formatting.to_single_line(problem, MAX_REASON_LENGTH) for problem in problems],
        tasks=list(dict.fromkeys(task for one in evaluation.served for task in one.tasks)),
        configurations=[
            _make_configuration_row(one, one.name in meant) for one in evaluation.served
        ],
        comparisons=pairings,
        faults=[FaultRow(fault, _choose_fault_mark(fault)) for fault in evaluation.faults],
        counts=[
            (JUDGEMENT_MARKS[verdict], counts[verdict])
            for verdict in ComparisonVerdict
            if counts[verdict]
        ],
    )


def _make_configuration_row(
    served: ServedConfiguration, has_planted_fault: bool
) -> ConfigurationRow:
    errors = sum(bool(answer.error) for answer in served.answers)
    why = served.failure or served.absent
    if served.failure:
        mark = FAILED_MARK
    elif not served.answers:
        mark = ABSENT_MARK if served.absent else SILENT_MARK
        why = why or "answered nothing"
    else:
        mark = ERRORS_MARK if errors else SERVED_MARK
    scores = {task: _make_score(served.select_answers(task)) for task in served.tasks}
    return ConfigurationRow(served, mark, has_planted_fault, scores, errors, why)


def _make_score(answers: Sequence[ItemAnswer]) -> TaskScore:
    said = [None if answer.error else answer.right for answer in answers]
    return TaskScore(said.count(True), len(said), said.count(None))


def _choose_fault_mark(fault: PlantedFault) -> ReportMark:
    if fault.caught:
        return CAUGHT_MARK
    if fault.absent:
        return ABSENT_MARK
    if not fault.expected:
        return UNNOTICED_MARK
    return MISSED_MARK if fault.reach else UNREACHED_MARK


def _choose_tone(mark: ReportMark, has_planted_fault: bool) -> str:
    """What goes wrong on purpose is shown, and not as an alarm."""
    return mark.tone if not has_planted_fault else "quiet" if mark.good else "bug"


def _compute_wilson_interval(right: int, items: int) -> tuple[float, float]:
    share, square = right / items, Z_SCORE_95 * Z_SCORE_95 / items
    middle = share + square / 2
    half = Z_SCORE_95 * math.sqrt(share * (1 - share) / items + square / items / 4)
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return max(0.0, low), min(1.0, high)


def format_number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2g}" if math.isfinite(value) else "no number"
