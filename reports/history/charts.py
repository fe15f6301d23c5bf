"""The positions of columns in the charts of a history, of WIDTH by HEIGHT."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.runs.history.values import TimelineState
from reports.history.view import STATE_MARKS, HistoryView

WIDTH, HEIGHT = 440, 120
BOTTOM, TOP = 20, 8
LETTER_WIDTH = 6.7  # of the labels' font
BAD_STATES = (TimelineState.NEW, TimelineState.BACK, TimelineState.KNOWN, TimelineState.FLAKY)
KIND_TONES = ("kind-1", "kind-2", "kind-3", "kind-4", "kind-5")


@dataclass(frozen=True)
class ChartSegment:
    x: float
    y: float
    width: float
    height: float
    tone: str
    glyph: str = ""


@dataclass(frozen=True)
class ChartColumn:
    x: float
    label: str
    title: str
    boxes: list[ChartSegment]


@dataclass(frozen=True)
class NightlyChart:
    name: str
    newest_label: str
    columns: list[ChartColumn]
    ticks: list[tuple[float, str]]
    left: float  # of the columns; before it stands the widest label of the axis
    labels: list[tuple[float, str]]


def make_trend_charts(history_view: HistoryView) -> list[NightlyChart]:
    """Make a chart for each kind: its results that were not ok by night, and the ok count."""
    return [_make_trend_chart(history_view, kind) for kind in history_view.history.kinds]


def _make_trend_chart(history_view: HistoryView, kind: str) -> NightlyChart:
    nights = history_view.history.nights
    heights = []
    for night in nights:
        counts = night.counts.get(kind, {})
        heights.append([(STATE_MARKS[word], float(counts.get(word, 0))) for word in BAD_STATES])
    titles = []
    for night in nights:
        counts = night.counts.get(kind, {})
        good = counts.get(TimelineState.OK, 0) + counts.get(TimelineState.MENDED, 0)
        failures = [
            f"{counts[word]} {word}"
            for word in (*BAD_STATES, TimelineState.MENDED)
            if counts.get(word)
        ]
        titles.append(", ".join([f"{good} ok", *failures]) if counts else "not run")
    stacks = [
        [(f"tone-{mark.tone}", mark.glyph, number) for mark, number in stack] for stack in heights
    ]
    return _make_chart(history_view, kind, titles[-1], titles, stacks, None)


def make_cost_chart(history_view: HistoryView) -> NightlyChart | None:
    """Make a chart of all kinds, stacked, with a column for each night."""
    kinds = [
        kind
        for kind in history_view.history.kinds
        if any(night.spent.get(kind) for night in history_view.history.nights)
    ]
    if not kinds:
        return None
    unit = "" if history_view.prices.per_hour else " h"
    titles, stacks = [], []
    for night in history_view.history.nights:
        parts = [
            (kind, history_view.compute_night_cost(night.spent.get(kind, {}))) for kind in kinds
        ]
        costs = [f"{kind} {number:,.2f}{unit}" for kind, number in parts if number]
        titles.append(", ".join(costs) or "nothing")
        stacks.append(
            [(choose_kind_tone(history_view, kind), "", number) for kind, number in parts]
        )
    return _make_chart(history_view, "cost", titles[-1], titles, stacks, unit)


def compute_column_width(chart: NightlyChart) -> float:
    """Compute the width of a night."""
    return (WIDTH - chart.left) / len(chart.columns)


def choose_kind_tone(history_view: HistoryView, kind: str) -> str:
    return KIND_TONES[history_view.history.kinds.index(kind) % len(KIND_TONES)]


def _make_chart(
    history_view: HistoryView,
    name: str,
    newest_label: str,
    titles: list[str],
    stacks: list[list[tuple[str, str, float]]],
    unit: str | None,
) -> NightlyChart:
    """Make a chart; without a unit its numbers are counts."""
    days = history_view.days
    top = round_axis_maximum(
        max((sum(n for _, _, n in stack) for stack in stacks), default=0.0),
        whole_numbers=unit is None,
    )
    numbers = ["0", f"{top / 2:g}{unit or ''}", f"{top:g}{unit or ''}"]
    left = LETTER_WIDTH * max(map(len, numbers)) + 10
    step = (WIDTH - left) / len(days)
    wide = min(step * 0.78, 34)
    tallest = HEIGHT - BOTTOM - TOP
    columns = []
    for place, stack in enumerate(stacks):
        x = left + step * (place + 0.5)
        y = float(HEIGHT - BOTTOM)
        boxes = []
        for word, glyph, number in stack:
            if number:
                tall = tallest * number / top
                y -= tall
                sign = glyph if tall >= 12 and wide >= 9 else ""
                boxes.append(ChartSegment(x - wide / 2, y, wide, tall, word, sign))
        columns.append(ChartColumn(x, days[place], f"{days[place]}: {titles[place]}", boxes))
    every = max(1, math.ceil(len(days) / 7))
    labels = [(columns[place].x, days[place][5:]) for place in range(len(days) - 1, -1, -every)]
    ticks = [
        (HEIGHT - BOTTOM - tallest * share, number)
        for share, number in zip((0.0, 0.5, 1.0), numbers, strict=True)
    ]
    return NightlyChart(name, newest_label, columns, ticks, left, labels)


def round_axis_maximum(largest: float, *, whole_numbers: bool) -> float:
    """Round up to a round number; for counts, to an even one."""
    if largest <= 0:
        return 2.0 if whole_numbers else 1.0
    power = 10 ** math.floor(math.log10(largest))
    steps = (1, 2, 4, 6, 8, 10) if not whole_numbers or power >= 10 else (2, 4, 6, 8, 10)
    return float(next(step * power for step in steps if step * power >= largest - 1e-9))
