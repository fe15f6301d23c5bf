"""A history as Markdown, for the summary of a job."""

from __future__ import annotations

from harness.runs.history.resource_prices import ResourcePrices
from harness.runs.history.values import NightHistory, Timeline, TimelineState
from reports.history import view
from reports.history.view import STATE_MARKS, HistoryView
from reports.shared import formatting
from reports.shared.formatting import to_single_line as short
from reports.shared.markdown import escape_text, render_table

MAX_ROWS = 50
MAX_NIGHTS = 14


def render_markdown(history: NightHistory, prices: ResourcePrices) -> str:
    seen = HistoryView(history, prices)
    sign, word = ("✓", "green") if history.green else ("✗", "RED")
    counts = ", ".join(f"{number} {mark.word}" for mark, number in seen.counts) or "nothing"
    parts = [
        f"## {sign} The nights since {seen.days[0]}: {word}",
        f"**{escape_text(seen.statement)}** {escape_text(counts)}.",
        "\n".join(f"- {escape_text(short(problem, 300))}" for problem in seen.problems),
        render_failing(seen, "Failing", seen.failing),
        render_failing(seen, "Mended", history.select_by_state(TimelineState.MENDED)),
        render_flaky(seen),
        render_slower(seen),
        render_costs(seen),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_failing(history_view: HistoryView, head: str, lines: list[Timeline]) -> str:
    rows = [
        [
            f"{STATE_MARKS[line.state].glyph} **{line.state}**",
            line.item.kind,
            escape_text(short(line.item.title, 100)),
            render_nights(line, history_view),
            escape_text(view.describe_since(line, history_view)),
            escape_text(view.describe_last_failure(line)),
        ]
        for line in lines[:MAX_ROWS]
    ]
    return _render_section(
        head, ["", "kind", "what", "nights", "since", "it said"], rows, len(lines)
    )


def render_nights(line: Timeline, history_view: HistoryView) -> str:
    """The last nights in signs."""
    marks = view.make_night_marks(line, len(history_view.history.nights))[-MAX_NIGHTS:]
    return "".join("&nbsp;" if mark is None else escape_text(mark.glyph) for mark in marks)


def render_flaky(history_view: HistoryView) -> str:
    rows = [
        [
            f"{line.score.share:.0%}",
            line.item.kind,
            escape_text(short(line.item.title, 100)),
            render_nights(line, history_view),
            escape_text(view.describe_flakiness(line)),
        ]
        for line in history_view.flaky[:MAX_ROWS]
    ]
    heads = ["score", "kind", "what", "nights", "repeats"]
    return _render_section("Flaky", heads, rows, len(history_view.flaky))


def render_slower(history_view: HistoryView) -> str:
    rows = [
        [
            f"{line.slowdown:.1f} times",
            escape_text(short(line.item.title, 100)),
            formatting.format_duration(line.informative_points[-1].main_observation.seconds),
            formatting.format_duration(line.median_seconds),
        ]
        for line in history_view.slower[:MAX_ROWS]
    ]
    heads = ["slower", "what", "newest", "median"]
    return _render_section("Slower than they were", heads, rows, len(history_view.slower))


def render_costs(history_view: HistoryView) -> str:
    rows = [
        [escape_text(what), escape_text(whole), escape_text(newest)]
        for what, whole, newest in history_view.cost_rows
    ]
    return _render_section("Cost", ["of", "all nights", "newest night"], rows, len(rows))


def _render_section(head: str, heads: list[str], rows: list[list[str]], total: int) -> str:
    if not rows:
        return ""
    more = f"\n\n… and {total - len(rows)} more." if total > len(rows) else ""
    return f"### {head}\n\n{render_table(heads, rows, '---')}{more}"
