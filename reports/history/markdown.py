"""A history as Markdown, for the summary of a job."""

from __future__ import annotations

from harness.history.costs import Prices
from harness.history.values import History, Line, State
from reports.history import view
from reports.history.view import MARKS, HistoryView
from reports.shared import texts
from reports.shared.markdown import escaped, table
from reports.shared.texts import line as short

ROWS = 50
NIGHTS = 14


def text(history: History, prices: Prices) -> str:
    seen = HistoryView(history, prices)
    sign, word = ("✓", "green") if history.green else ("✗", "RED")
    counts = ", ".join(f"{number} {mark.word}" for mark, number in seen.counts) or "nothing"
    parts = [
        f"## {sign} The nights since {seen.days[0]}: {word}",
        f"**{escaped(seen.statement)}** {escaped(counts)}.",
        "\n".join(f"- {escaped(short(problem, 300))}" for problem in seen.problems),
        failing(seen, "Failing", seen.failing),
        failing(seen, "Mended", history.of(State.MENDED)),
        flaky(seen),
        slower(seen),
        costs(seen),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def failing(seen: HistoryView, head: str, lines: list[Line]) -> str:
    rows = [
        [
            f"{MARKS[line.state].glyph} **{line.state}**",
            line.thing.kind,
            escaped(short(line.thing.title, 100)),
            row(line, seen),
            escaped(view.since(line, seen)),
            escaped(view.words(line)),
        ]
        for line in lines[:ROWS]
    ]
    return _section(head, ["", "kind", "what", "nights", "since", "it said"], rows, len(lines))


def row(line: Line, seen: HistoryView) -> str:
    """The last nights in signs."""
    marks = view.squares(line, len(seen.history.nights))[-NIGHTS:]
    return "".join("&nbsp;" if mark is None else escaped(mark.glyph) for mark in marks)


def flaky(seen: HistoryView) -> str:
    rows = [
        [
            f"{line.score.share:.0%}",
            line.thing.kind,
            escaped(short(line.thing.title, 100)),
            row(line, seen),
            escaped(view.wavers(line)),
        ]
        for line in seen.flaky[:ROWS]
    ]
    heads = ["score", "kind", "what", "nights", "repeats"]
    return _section("Flaky", heads, rows, len(seen.flaky))


def slower(seen: HistoryView) -> str:
    rows = [
        [
            f"{line.slower:.1f} times",
            escaped(short(line.thing.title, 100)),
            texts.duration(line.telling[-1].last.seconds),
            texts.duration(line.median),
        ]
        for line in seen.slower[:ROWS]
    ]
    heads = ["slower", "what", "newest", "median"]
    return _section("Slower than they were", heads, rows, len(seen.slower))


def costs(seen: HistoryView) -> str:
    rows = [[escaped(what), escaped(whole), escaped(newest)] for what, whole, newest in seen.spent]
    return _section("Cost", ["of", "all nights", "newest night"], rows, len(rows))


def _section(head: str, heads: list[str], rows: list[list[str]], of: int) -> str:
    if not rows:
        return ""
    more = f"\n\n… and {of - len(rows)} more." if of > len(rows) else ""
    return f"### {head}\n\n{table(heads, rows, '---')}{more}"
