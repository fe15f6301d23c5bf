"""Where the columns of a history's pictures stand, in a picture of WIDTH by HEIGHT."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.history.values import State
from reports.history.view import MARKS, HistoryView

WIDTH, HEIGHT = 640, 130
LEFT, BOTTOM, TOP = 44, 20, 8
BAD = (State.NEW, State.BACK, State.KNOWN, State.FLAKY)
TONES = ("kind-1", "kind-2", "kind-3", "kind-4", "kind-5")


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    tone: str
    glyph: str = ""


@dataclass(frozen=True)
class Column:
    x: float
    label: str
    title: str
    boxes: list[Box]


@dataclass(frozen=True)
class Chart:
    name: str
    told: str
    columns: list[Column]
    ticks: list[tuple[float, str]]
    labels: list[tuple[float, str]]


def trends(view: HistoryView) -> list[Chart]:
    """By kind: what was not ok in each night, and how much was."""
    return [_trend(view, kind) for kind in view.history.kinds]


def _trend(view: HistoryView, kind: str) -> Chart:
    nights = view.history.nights
    heights = []
    for night in nights:
        counts = night.counts.get(kind, {})
        heights.append([(MARKS[word], float(counts.get(word, 0))) for word in BAD])
    titles = []
    for night in nights:
        counts = night.counts.get(kind, {})
        good = counts.get(State.OK, 0) + counts.get(State.MENDED, 0)
        said = [f"{counts[word]} {word}" for word in (*BAD, State.MENDED) if counts.get(word)]
        titles.append(", ".join([f"{good} ok", *said]) if counts else "not run")
    stacks = [
        [(f"tone-{mark.tone}", mark.glyph, number) for mark, number in stack] for stack in heights
    ]
    return _chart(view, kind, titles[-1], titles, stacks, whole=True)


def costs(view: HistoryView) -> Chart | None:
    """All kinds upon each other, a column a night."""
    kinds = [
        kind
        for kind in view.history.kinds
        if any(night.spent.get(kind) for night in view.history.nights)
    ]
    if not kinds:
        return None
    unit = "" if view.prices.an_hour else " h"
    titles, stacks = [], []
    for night in view.history.nights:
        parts = [(kind, view.night_cost(night.spent.get(kind, {}))) for kind in kinds]
        said = [f"{kind} {number:,.2f}{unit}" for kind, number in parts if number]
        titles.append(", ".join(said) or "nothing")
        stacks.append([(tone(view, kind), "", number) for kind, number in parts])
    return _chart(view, "cost", titles[-1], titles, stacks, whole=False)


def room(chart: Chart) -> float:
    """The width of a night."""
    return (WIDTH - LEFT) / len(chart.columns)


def tone(view: HistoryView, kind: str) -> str:
    return TONES[view.history.kinds.index(kind) % len(TONES)]


def _chart(
    view: HistoryView,
    name: str,
    told: str,
    titles: list[str],
    stacks: list[list[tuple[str, str, float]]],
    *,
    whole: bool,
) -> Chart:
    days = view.days
    top = scale(max((sum(n for _, _, n in stack) for stack in stacks), default=0.0), whole=whole)
    step = (WIDTH - LEFT) / len(days)
    wide = min(step * 0.78, 34)
    tallest = HEIGHT - BOTTOM - TOP
    columns = []
    for place, stack in enumerate(stacks):
        x = LEFT + step * (place + 0.5)
        y = float(HEIGHT - BOTTOM)
        boxes = []
        for word, glyph, number in stack:
            if number:
                tall = tallest * number / top
                y -= tall
                shown = glyph if tall >= 12 and wide >= 9 else ""
                boxes.append(Box(x - wide / 2, y, wide, tall, word, shown))
        columns.append(Column(x, days[place], f"{days[place]}: {titles[place]}", boxes))
    every = max(1, math.ceil(len(days) / 7))
    labels = [(columns[place].x, days[place][5:]) for place in range(len(days) - 1, -1, -every)]
    ticks = [(HEIGHT - BOTTOM - tallest * share, f"{top * share:g}") for share in (0.0, 0.5, 1.0)]
    return Chart(name, told, columns, ticks, labels)


def scale(most: float, *, whole: bool) -> float:
    """A round number that is no less; of things that are counted, an even one."""
    if most <= 0:
        return 2.0 if whole else 1.0
    power = 10 ** math.floor(math.log10(most))
    steps = (1, 2, 4, 6, 8, 10) if not whole or power >= 10 else (2, 4, 6, 8, 10)
    return float(next(step * power for step in steps if step * power >= most - 1e-9))
