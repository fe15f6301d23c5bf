"""The bars of an evaluation, in percent of their width."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reports.eval import view
from reports.eval.view import ComparisonRow, EvalView, FaultRow
from reports.shared import formatting

MAX_TICKS = 5  # ticks of a scale: more would touch each other on a telephone


@dataclass(frozen=True)
class EvalBar:
    name: str
    tone: str
    end_percent: float
    label: str
    low_percent: float = 0.0
    high_percent: float = 0.0
    noise_percent: float | None = None
    title: str = ""


@dataclass(frozen=True)
class ScaleTick:
    percent: float
    label: str

    @property
    def anchor(self) -> str:
        return "start" if self.percent < 5 else "end" if self.percent > 95 else "middle"


@dataclass(frozen=True)
class DivergenceChart:
    bars: list[EvalBar]
    ticks: list[ScaleTick]


@dataclass(frozen=True)
class FaultMatrix:
    """The outcome of each planted fault: faults down, configurations across."""

    configurations: list[str]
    rows: list[tuple[str, list[FaultRow | None]]]


def make_accuracy_bars(eval_view: EvalView) -> dict[str, list[EvalBar]]:
    """Make, for each task, a bar for each configuration."""
    bars: dict[str, list[EvalBar]] = {}
    for row in eval_view.configurations:
        for task, score in row.scores.items():
            if score.unscored == score.items:
                continue
            low, high = score.interval
            tone = "bug" if row.has_planted_fault else "work"
            label = f"{score.share:.1%} [{low:.0%}, {high:.0%}]"
            bar = EvalBar(row.name, tone, 100 * score.share, label, 100 * low, 100 * high)
            bars.setdefault(task, []).append(bar)
    return bars


def make_divergence_chart(eval_view: EvalView) -> DivergenceChart:
    """Make a bar for each pair of configurations, of the task with the largest divergence."""
    most: dict[tuple[str, str], ComparisonRow] = {}
    for row in eval_view.comparisons:
        comparison = row.comparison
        if comparison.kind == "tokens" and comparison.divergence is not None:
            rows = most.get((comparison.base, comparison.candidate), row), row
            most[comparison.base, comparison.candidate] = max(rows, key=_measure_prominence)
    values = [
        value
        for row in most.values()
        for value in (row.comparison.divergence, row.comparison.noise)
        if value is not None and math.isfinite(value) and value > 0
    ]
    if not most:
        return DivergenceChart([], [])
    low = max(-12, math.floor(math.log10(min(values, default=1e-4))))
    high = max(low + 2, min(12, math.ceil(math.log10(max(values, default=1)))))

    def place(value: float) -> float:
        if value <= 0:
            return 0.0
        if not math.isfinite(value):
            return 100.0
        return min(100.0, max(0.0, 100 * (math.log10(value) - low) / (high - low)))

    bars = []
    for row in most.values():
        comparison = row.comparison
        task = f" ({row.task})" if comparison.task else ""
        bad_tone = "bug" if row.has_planted_fault else "bad"
        bars.append(
            EvalBar(
                formatting.to_single_line(comparison.candidate),
                "good" if comparison.verdict.is_good else bad_tone,
                place(comparison.divergence or 0.0),
                f"{view.format_number(comparison.divergence)}, {row.mark.word}",
                noise_percent=None if comparison.noise is None else place(comparison.noise),
                title=f"{row.pair_label}{task}: {row.measure}",
            )
        )
    every = math.ceil((high - low) / (MAX_TICKS - 1))
    ticks = [
        ScaleTick(100 * (decade - low) / (high - low), f"1e{decade}" if decade else "1")
        for decade in range(low, high + 1, every)
    ]
    return DivergenceChart(bars, ticks)


def _measure_prominence(row: ComparisonRow) -> float:
    comparison = row.comparison
    if comparison.divergence is None or not math.isfinite(comparison.divergence):
        return math.inf
    return comparison.divergence / max(comparison.noise or 0.0, 1e-12)


def make_fault_matrix(eval_view: EvalView) -> FaultMatrix:
    names = list(dict.fromkeys(row.fault.configuration for row in eval_view.faults))
    by_place = {(row.fault.toggle, row.fault.configuration): row for row in eval_view.faults}
    toggles = dict.fromkeys(row.fault.toggle for row in eval_view.faults)
    rows = [(toggle, [by_place.get((toggle, name)) for name in names]) for toggle in toggles]
    return FaultMatrix(names, rows)
