"""An evaluation as every report shows it: its servers, what differs, which faults were caught."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.outcomes import Verdict
from harness.core.wording import format_duration
from harness.store.eval.values import (
    ComparisonResult,
    Evaluation,
    ItemAnswer,
    PlantedFault,
    ServedConfiguration,
)
from reports.shared import formatting
from reports.shared.formatting import to_single_line
from reports.shared.marks import ReportMark, format_counts, make_marks
from reports.shared.stand_ins import describe_run_stand_ins

JUDGEMENT_MARKS = {
    Verdict(word): mark
    for word, mark in make_marks("""
        same        | ok    | ✓ | good      | A change of the tolerance is excluded.
        improved    | up    | ↑ | fix       | More was gained than lost.
        equal       | eq    | = | good      | Each token is the same, within the noise.
        near-tie    | tie   | ≈ | good      | A token differs where the base was near to the other.
        regressed   | down  | ↓ | broken    | More was lost than gained.
        differs     | dif   | ≠ | broken    | A token differs, and not by noise.
        drifts      | drift | ~ | toothless | Logprobs differ by more than the noise.
        cannot tell | ?     | ? | unreached | The items cannot decide.
        fails       | fail  | ✖ | death     | One of the two was not served.
        hang        | hang  | ∞ | death     | The server was alive and no longer answered.
        n/a         | n/a   | - | quiet     | This does not apply here.
    """).items()
}
SERVED_MARK, ERRORS_MARK, FAILED_MARK, ABSENT_MARK, SILENT_MARK = make_marks("""
    served     | ok   | ✓ | good      | It answered.
    errors     | err  | ✕ | broken    | Some of its answers are errors.
    failed     | fail | ✖ | death     | It did not get ready, or died.
    n/a        | n/a  | - | quiet     | It cannot be run here.
    no answers | none | ? | unreached | It gave no answers, for no known reason.
""").values()
CAUGHT_MARK, MISSED_MARK, UNCONFIRMED_MARK, UNREACHED_MARK, UNNOTICED_MARK = make_marks("""
    caught      | ok    | ✓ | good      | A comparison shows it, and repeated runs confirm it.
    missed      | miss  | ○ | toothless | It had to be detected, and no comparison detected it.
    unconfirmed | unc   | ? | toothless | A comparison shows it; repeated runs do not confirm it.
    unreached   | unr   | ? | unreached | It had to be detected, and its code never ran.
    not seen    | quiet | · | quiet     | It was not detected, and did not have to be.
""").values()
FAULT_MARKS = (
    CAUGHT_MARK,
    MISSED_MARK,
    UNCONFIRMED_MARK,
    UNREACHED_MARK,
    UNNOTICED_MARK,
    ABSENT_MARK,
)

Z_SCORE_95 = 1.96  # the z-score of 95 % intervals
MAX_REASON_LENGTH = 300  # letters of a reason, which may hold a whole log


@dataclass(frozen=True)
class TaskScore:
    """The answers of one configuration to one task."""

    right: int
    items: int
    unscored: int  # unscored answers, errors included

    @property
    def share(self) -> float:
        return self.right / self.items

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval, from all missing answers wrong to all of them right."""
        low, _ = _compute_wilson_interval(self.right, self.items)
        _, high = _compute_wilson_interval(self.right + self.unscored, self.items)
        return low, high

    @property
    def score_text(self) -> str:
        if self.unscored == self.items:
            return f"- of {self.items}"
        return f"{self.right}/{self.items}"


@dataclass(frozen=True)
class ConfigurationRow:
    served: ServedConfiguration
    mark: ReportMark
    has_planted_fault: bool
    scores: dict[str, TaskScore]  # by task
    errors: int
    missing_reason: str  # why answers are missing

    @property
    def tone(self) -> str:
        return _choose_tone(self.mark, self.has_planted_fault)

    @property
    def name(self) -> str:
        return to_single_line(self.served.name)

    @property
    def toggle_summary(self) -> str:
        sides = [("reverted", self.served.revert), ("applied", self.served.enable)]
        return "; ".join(f"{', '.join(names)} {side}" for side, names in sides if names)

    @property
    def remarks(self) -> str:
        """The reason for missing numbers, and the toggles."""
        parts = filter(None, [self.missing_reason, self.toggle_summary])
        return "; ".join(to_single_line(part, MAX_REASON_LENGTH) for part in parts)

    @property
    def stand_ins(self) -> str:
        """The parts that were replaced or observed: 'cache: checked 3 of 3 kernels; ...'."""
        parts = [to_single_line(part, MAX_REASON_LENGTH) for part in self.served.stand_ins]
        return f"{self.name}: {'; '.join(parts)}" if parts else ""

    @property
    def accepted_text(self) -> str:
        return "" if self.served.accepted is None else f"{self.served.accepted:.2f}"

    @property
    def ready_text(self) -> str:
        return format_duration(self.served.ready) if self.served.ready else ""


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
        comparison = self.comparison
        return f"{to_single_line(comparison.base)} → {to_single_line(comparison.candidate)}"

    @property
    def task(self) -> str:
        return to_single_line(self.comparison.task) or "all"

    @property
    def measure(self) -> str:
        """A drop with its interval, or a divergence beside the noise."""
        comparison = self.comparison
        if comparison.kind == "tokens":
            return f"{format_number(comparison.divergence)} / {format_number(comparison.noise)}"
        if comparison.drop is None:
            return "-"
        if comparison.low is None or comparison.high is None:
            return f"{comparison.drop:+.1%}"
        return f"{comparison.drop:+.1%} [{comparison.low:+.1%}, {comparison.high:+.1%}]"

    @property
    def counts_text(self) -> str:
        comparison = self.comparison
        parts = [f"{comparison.items} items"]
        parts += (
            [f"{comparison.lost} lost, {comparison.gained} gained"]
            if comparison.kind != "tokens"
            else []
        )
        parts += [f"{comparison.errors} errors"] if comparison.errors else []
        return ", ".join(parts)

    @property
    def differing_count(self) -> int:
        """The number of items that differ; `differences` may have only the first of them."""
        comparison = self.comparison
        counted = (
            0
            if comparison.kind == "tokens"
            else comparison.lost + comparison.gained + comparison.errors
        )
        return max(counted, len(comparison.differences))

    @property
    def explanation(self) -> str:
        return to_single_line(self.comparison.words, MAX_REASON_LENGTH)


@dataclass(frozen=True)
class FaultRow:
    fault: PlantedFault
    mark: ReportMark

    @property
    def detected_by(self) -> str:
        parts = [*self.fault.by, *filter(None, [self.fault.unconfirmed])]
        text = self.fault.absent or "; ".join(parts) or "none"
        return to_single_line(text, MAX_REASON_LENGTH)

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
    comparisons: list[ComparisonRow]  # unresolved ones first, planted faults last
    faults: list[FaultRow]
    counts: list[tuple[ReportMark, int]]  # counts of comparisons without a planted fault

    @property
    def statement(self) -> str:
        """The outcome in one sentence."""
        if not self.green:
            several = f"{len(self.problems)} problems are unresolved."
            return self.problems[0] if len(self.problems) == 1 else several
        not_applicable = JUDGEMENT_MARKS[Verdict.NA]
        count = sum(number for mark, number in self.counts if mark is not not_applicable)
        text = f"{count} comparisons, and nothing beyond chance and noise."
        return f"{text} {self.caught_summary}." if self.faults else text

    @property
    def caught_summary(self) -> str:
        """'5 of 5 faults caught (0 of 1 that need not be)'."""
        must = [row.fault.caught for row in self.faults if row.fault.expected]
        unplanned = [row.fault.caught for row in self.faults if not row.fault.expected]
        text = f"{sum(must)} of {len(must)} faults caught"
        return (
            f"{text} ({sum(unplanned)} of {len(unplanned)} that need not be)" if unplanned else text
        )

    @property
    def counts_text(self) -> str:
        """'40 same, 8 equal, 5 of 5 faults caught'."""
        caught = f", {self.caught_summary}" if self.faults else ""
        return format_counts(self.counts, "no comparisons") + caught

    def find_comparison(self, configuration: str) -> int | None:
        """Return the place of a configuration's comparison, if there is one with it."""
        for place, row in enumerate(self.comparisons):
            if configuration in (row.comparison.candidate, row.comparison.base):
                return place
        return None

    @property
    def stand_ins(self) -> str:
        """What stand-ins computed in all servers; those that repeat a fault are not counted."""
        evaluation = self.evaluation
        return describe_run_stand_ins(
            evaluation.device, (served.operators for served in evaluation.served)
        )

    @property
    def stand_in_lines(self) -> list[str]:
        """A line for each configuration that has stand-ins, and one of what computed in all."""
        lines = [*(row.stand_ins for row in self.configurations), self.stand_ins]
        return [line for line in lines if line]

    @property
    def started(self) -> str:
        moment = datetime.datetime.fromtimestamp(self.evaluation.started, datetime.UTC)
        return formatting.format_time(moment.isoformat())

    @property
    def settings(self) -> list[tuple[str, str]]:
        """The settings, and the smallest drop that so many items can detect."""
        evaluation = self.evaluation
        facts = [
            ("device", evaluation.device),
            ("items", f"{evaluation.items} a task, seed {evaluation.seed}"),
            ("false alarms", f"{evaluation.alpha:.3g}, shared by {evaluation.cells} comparisons"),
        ]
        if evaluation.smallest_drop is not None:
            facts.append(("finds", f"a drop of {evaluation.smallest_drop:.1%}, 95 times in 100"))
        return facts


def make_view(evaluation: Evaluation) -> EvalView:
    planted = evaluation.planted_names
    rows = [
        ComparisonRow(
            comparison, JUDGEMENT_MARKS[comparison.verdict], comparison.candidate in planted
        )
        for comparison in evaluation.compared
    ]
    failed = {id(comparison) for comparison in evaluation.failed_comparisons}
    rows.sort(key=lambda row: (row.has_planted_fault, id(row.comparison) not in failed))
    problems = evaluation.problems
    counts = Counter(row.comparison.verdict for row in rows if not row.has_planted_fault)
    return EvalView(
        evaluation=evaluation,
        green=not problems,
        problems=[to_single_line(problem, MAX_REASON_LENGTH) for problem in problems],
        tasks=list(
            dict.fromkeys(
                task for configuration in evaluation.served for task in configuration.tasks
            )
        ),
        configurations=[
            _make_configuration_row(configuration, configuration.name in planted)
            for configuration in evaluation.served
        ],
        comparisons=rows,
        faults=[FaultRow(fault, _choose_fault_mark(fault)) for fault in evaluation.faults],
        counts=[(JUDGEMENT_MARKS[v], counts[v]) for v in JUDGEMENT_MARKS if counts[v]],
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
        why = why or "gave no answers"
    else:
        mark = ERRORS_MARK if errors else SERVED_MARK
    scores = {task: _make_score(served.select_answers(task)) for task in served.tasks}
    return ConfigurationRow(served, mark, has_planted_fault, scores, errors, why)


def _make_score(answers: Sequence[ItemAnswer]) -> TaskScore:
    outcomes = [None if answer.error else answer.right for answer in answers]
    return TaskScore(outcomes.count(True), len(outcomes), outcomes.count(None))


def _choose_fault_mark(fault: PlantedFault) -> ReportMark:
    if fault.caught:
        return CAUGHT_MARK
    if fault.absent:
        return ABSENT_MARK
    if fault.unconfirmed:
        return UNCONFIRMED_MARK
    if not fault.expected:
        return UNNOTICED_MARK
    return MISSED_MARK if fault.reach else UNREACHED_MARK


def _choose_tone(mark: ReportMark, has_planted_fault: bool) -> str:
    """Choose the tone of a mark; a planted fault that shows is no alarm."""
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
