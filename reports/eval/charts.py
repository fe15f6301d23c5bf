"""Where the bars of an evaluation begin and end, in percent of their width."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reports.eval import view
from reports.eval.view import EvalView, FaultRow, Pairing
from reports.shared import texts

LABELS = 5  # on a scale, at most: they must not touch on a telephone


@dataclass(frozen=True)
class Bar:
    name: str
    tone: str
    end: float
    told: str
    low: float = 0.0
    high: float = 0.0
    noise: float | None = None
    title: str = ""


@dataclass(frozen=True)
class Tick:
    at: float
    label: str

    @property
    def anchor(self) -> str:
        return "start" if self.at < 5 else "end" if self.at > 95 else "middle"


@dataclass(frozen=True)
class Divergences:
    bars: list[Bar]
    ticks: list[Tick]


@dataclass(frozen=True)
class Matrix:
    """Who noticed what: faults down, configurations across."""

    configurations: list[str]
    rows: list[tuple[str, list[FaultRow | None]]]


def accuracy(seen: EvalView) -> dict[str, list[Bar]]:
    """By task, a bar a configuration."""
    bars: dict[str, list[Bar]] = {}
    for row in seen.configurations:
        for task, score in row.scores.items():
            if score.unscored == score.items:
                continue
            low, high = score.interval
            tone = "bug" if row.meant else "work"
            told = f"{score.share:.1%} [{low:.0%}, {high:.0%}]"
            bars.setdefault(task, []).append(
                Bar(row.name, tone, 100 * score.share, told, 100 * low, 100 * high)
            )
    return bars


def divergences(seen: EvalView) -> Divergences:
    """A bar for each two configurations: of their tasks the one that stands out most."""
    most: dict[tuple[str, str], Pairing] = {}
    for pairing in seen.pairings:
        one = pairing.compared
        if one.kind == "tokens" and one.divergence is not None:
            before = most.get((one.base, one.candidate))
            if before is None or _stands_out(pairing) > _stands_out(before):
                most[one.base, one.candidate] = pairing
    values = [
        value
        for pairing in most.values()
        for value in (pairing.compared.divergence, pairing.compared.noise)
        if value is not None and math.isfinite(value) and value > 0
    ]
    if not most:
        return Divergences([], [])
    low = max(-12, math.floor(math.log10(min(values, default=1e-4))))
    high = max(low + 2, min(12, math.ceil(math.log10(max(values, default=1)))))

    def place(value: float) -> float:
        if value <= 0:
            return 0.0
        if not math.isfinite(value):
            return 100.0
        return min(100.0, max(0.0, 100 * (math.log10(value) - low) / (high - low)))

    bars = []
    for pairing in most.values():
        one = pairing.compared
        task = f" ({pairing.task})" if one.task else ""
        bars.append(
            Bar(
                texts.line(one.candidate),
                "good" if one.verdict.fine else "bug" if pairing.meant else "bad",
                place(one.divergence or 0.0),
                f"{view.number(one.divergence)}, {pairing.mark.word}",
                noise=None if one.noise is None else place(one.noise),
                title=f"{pairing.names}{task}: {pairing.measure}",
            )
        )
    every = math.ceil((high - low) / (LABELS - 1))
    ticks = [
        Tick(100 * (decade - low) / (high - low), f"1e{decade}" if decade else "1")
        for decade in range(low, high + 1, every)
    ]
    return Divergences(bars, ticks)


def _stands_out(pairing: Pairing) -> float:
    one = pairing.compared
    if one.divergence is None or not math.isfinite(one.divergence):
        return math.inf
    return one.divergence / max(one.noise or 0.0, 1e-12)


def matrix(seen: EvalView) -> Matrix:
    names = list(dict.fromkeys(row.fault.configuration for row in seen.faults))
    found = {(row.fault.toggle, row.fault.configuration): row for row in seen.faults}
    toggles = dict.fromkeys(row.fault.toggle for row in seen.faults)
    rows = [(toggle, [found.get((toggle, name)) for name in names]) for toggle in toggles]
    return Matrix(names, rows)
