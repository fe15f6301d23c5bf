"""A search on a terminal: its runs as rows of dots, the culprits with their diff, one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from harness.core.wording import format_count, format_duration
from harness.store.bisect.values import BisectSearch
from reports.bisect import view
from reports.bisect.view import GLYPHS, TONES, SearchPartView, SearchView
from reports.shared.terminal import TONE_STYLES, print_diff, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_STOPS = 24  # a longer history shows only the stops that ran


def print_run(search: BisectSearch, console: Console) -> None:
    search_view = view.make_view(search)
    if search_view.stops:
        print_history(search_view, console)
        console.print()
    for part in search_view.parts:
        several = len(search_view.parts) > 1 or bool(search_view.stops)
        print_runs(part, console, with_title=several)
        console.print()
    for culprit in search_view.culprits:
        toggle = culprit.toggle
        upstream = ", ".join(f"#{number}" for number in toggle.upstream)
        about = ", ".join(word for word in (toggle.family, toggle.symptom, upstream) if word)
        title = to_plain_text(f"{toggle.id}  {toggle.title}", "bold")
        console.print(title, to_plain_text(f"({about})", "dim"))
        console.print(to_plain_text(f"  {culprit.patch_summary}:", "dim"))
        print_diff(console, culprit.patch, "  ")
        console.print()
    wraps = not console.is_terminal
    replays = [t.replay for t in search.trials if t.why == "proof" and t.toggles and t.replay]
    if replays and search.found:
        console.print(to_plain_text(f"again: {replays[0]}", "dim"), soft_wrap=wraps)
    style = {"found": "green", "none": "yellow"}.get(search.verdict, "bold red")
    verdict = search.verdict or search.status, style
    console.print(Text.assemble(verdict, "  ", to_plain_text(search.summary)), soft_wrap=wraps)
    runs = format_count(len(search.trials), "run")
    took = format_duration(search.seconds)
    console.print(to_plain_text(f"{runs}, {took}; unfix report {search.id}", "dim"))


def print_history(search_view: SearchView, console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    stops = search_view.stops
    if len(stops) > MAX_STOPS:
        stops = [stop for stop in stops if stop.trial or stop.role]
    for stop in stops:
        sign, outcome = Text("·", "dim"), to_plain_text("not run", "dim")
        if stop.trial:
            sign = Text(GLYPHS[stop.trial.answer], TONE_STYLES[TONES[stop.trial.answer]])
            outcome = to_plain_text(stop.trial.how)
        arrow = {"before": "┐", "after": "┘ here", "between": "│ or here"}.get(stop.role, "")
        table.add_row(to_plain_text(stop.name), sign, outcome, Text(arrow, "bold"))
    console.print(table)


def print_runs(part_view: SearchPartView, console: Console, with_title: bool) -> None:
    """Print a row for each run: a dot for each toggle, filled if the run toggled it."""
    if with_title:
        console.print(to_plain_text(f"{part_view.part.name}: {part_view.title}", "bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("run", justify="right")
    names = part_view.part.toggles
    table.add_column(format_count(len(names), "toggle"), no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("")
    table.add_column("outcome", overflow="fold")
    for row in part_view.rows:
        dots = Text()
        for name in names:
            inside = name in row.toggles
            style = "bold red" if name in part_view.culprits else "" if inside else "dim"
            dots.append("●" if inside else "·", style)
        mark = Text(GLYPHS[row.answer], TONE_STYLES[TONES[row.answer]])
        purpose = view.PURPOSES[row.why]
        if row.why == "proof" and 0 < len(row.toggles) < 3:
            purpose += f": {' + '.join(sorted(row.toggles))}"
        outcome = to_plain_text(row.outcome_text)
        table.add_row(str(row.number), dots, to_plain_text(purpose, "dim"), mark, outcome)
    console.print(table)
    console.print(to_plain_text(f"  columns: {' '.join(names)}", "dim"))
    for name, reason in part_view.part.refused.items():
        console.print(to_plain_text(f"  not tried: {name} ({reason})", "dim"))
