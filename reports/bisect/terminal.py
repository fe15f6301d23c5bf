"""A search on a terminal: its runs as a picture of dots, the culprits with their diff, one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from harness.store.bisect.values import BisectSearch
from reports.bisect import view
from reports.bisect.view import GLYPHS, TONES, SearchPartView, SearchView
from reports.shared import formatting
from reports.shared.terminal import TONE_STYLES, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_STOPS = 24  # of a long history only those where something ran
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def print_run(search: BisectSearch, console: Console) -> None:
    seen = view.make_view(search)
    if seen.stops:
        print_history(seen, console)
        console.print()
    for part in seen.parts:
        print_runs(part, console, with_title=len(seen.parts) > 1 or bool(seen.stops))
        console.print()
    for blamed in seen.culprits:
        toggle = blamed.toggle
        upstream = ", ".join(f"#{number}" for number in toggle.upstream)
        named = f"{toggle.id}  {toggle.title}"
        about = ", ".join(word for word in (toggle.family, toggle.symptom, upstream) if word)
        console.print(to_plain_text(named, "bold"), to_plain_text(f"({about})", "dim"))
        console.print(to_plain_text(f"  {blamed.patch_summary}:", "dim"))
        for line in blamed.patch.splitlines():
            console.print(to_plain_text(f"  {line}", DIFF_STYLES.get(line[:1], "")))
        console.print()
    colour = {"found": "green", "none": "yellow"}.get(search.verdict, "bold red")
    again = [t.replay for t in search.trials if t.why == "proof" and t.toggles and t.replay]
    if again and search.found:
        console.print(to_plain_text(f"again: {again[0]}", "dim"), soft_wrap=not console.is_terminal)
    runs_told = "1 run" if len(search.trials) == 1 else f"{len(search.trials)} runs"
    count = f"{runs_told}, {formatting.format_duration(search.seconds)}"
    last = Text.assemble(
        (search.verdict or search.status, colour), "  ", to_plain_text(search.summary)
    )
    console.print(last, soft_wrap=not console.is_terminal)
    console.print(to_plain_text(f"{count}; unfix report {search.id}", "dim"))


def print_history(search_view: SearchView, console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    stops = search_view.stops
    if len(stops) > MAX_STOPS:
        stops = [stop for stop in stops if stop.trial or stop.role]
    for stop in stops:
        sign, told = Text("·", "dim"), to_plain_text("not run", "dim")
        if stop.trial:
            sign = Text(GLYPHS[stop.trial.answer], TONE_STYLES[TONES[stop.trial.answer]])
            told = to_plain_text(stop.trial.how)
        arrow = {"before": "┐", "after": "┘ here", "between": "│ or here"}.get(stop.role, "")
        table.add_row(to_plain_text(stop.name), sign, told, Text(arrow, "bold"))
    console.print(table)


def print_runs(part_view: SearchPartView, console: Console, with_title: bool) -> None:
    """A row a run: a dot for each toggle, filled where it is in the run."""
    if with_title:
        console.print(to_plain_text(f"{part_view.part.name}: {part_view.title}", "bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("run", justify="right")
    names = part_view.part.toggles
    table.add_column(f"{len(names)} toggles" if len(names) != 1 else "1 toggle", no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("")
    table.add_column("outcome", overflow="fold")
    for row in part_view.rows:
        dots = Text()
        for name in names:
            inside = name in row.toggles
            colour = "" if inside else "dim"
            dots.append(
                "●" if inside else "·", "bold red" if name in part_view.culprits else colour
            )
        mark = Text(GLYPHS[row.answer], TONE_STYLES[TONES[row.answer]])
        named = " + ".join(sorted(row.toggles)) if 0 < len(row.toggles) < 3 else ""
        why = view.PURPOSES[row.why]
        told = f"{why}: {named}" if named and row.why == "proof" else why
        table.add_row(
            str(row.number), dots, to_plain_text(told, "dim"), mark, to_plain_text(row.outcome_text)
        )
    console.print(table)
    console.print(to_plain_text(f"  columns: {' '.join(names)}", "dim"))
    for name, reason in part_view.part.refused.items():
        console.print(to_plain_text(f"  not tried: {name} ({reason})", "dim"))
