"""A search on a terminal: its runs as a picture of dots, the culprits with their diff, one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from harness.store.bisect.values import Search
from reports.bisect import view
from reports.bisect.view import GLYPHS, TONES, PartView, SearchView
from reports.shared import texts
from reports.shared.terminal import STYLES, plain

if TYPE_CHECKING:
    from rich.console import Console

STOPS = 24  # of a long history only those where something ran
DIFF = {"+": "green", "-": "red", "@": "cyan"}


def show(search: Search, console: Console) -> None:
    seen = view.make(search)
    if seen.stops:
        history(seen, console)
        console.print()
    for part in seen.parts:
        runs(part, console, titled=len(seen.parts) > 1 or bool(seen.stops))
        console.print()
    for blamed in seen.blamed:
        toggle = blamed.toggle
        upstream = ", ".join(f"#{number}" for number in toggle.upstream)
        named = f"{toggle.id}  {toggle.title}"
        about = ", ".join(word for word in (toggle.family, toggle.symptom, upstream) if word)
        console.print(plain(named, "bold"), plain(f"({about})", "dim"))
        console.print(plain(f"  {blamed.does}:", "dim"))
        for line in blamed.patch.splitlines():
            console.print(plain(f"  {line}", DIFF.get(line[:1], "")))
        console.print()
    colour = {"found": "green", "none": "yellow"}.get(search.verdict, "bold red")
    again = [t.replay for t in search.trials if t.why == "proof" and t.toggles and t.replay]
    if again and search.found:
        console.print(plain(f"again: {again[0]}", "dim"), soft_wrap=not console.is_terminal)
    runs_told = "1 run" if len(search.trials) == 1 else f"{len(search.trials)} runs"
    count = f"{runs_told}, {texts.duration(search.seconds)}"
    last = Text.assemble((search.verdict or search.status, colour), "  ", plain(search.summary))
    console.print(last, soft_wrap=not console.is_terminal)
    console.print(plain(f"{count}; unfix report {search.id}", "dim"))


def history(seen: SearchView, console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    stops = seen.stops
    if len(stops) > STOPS:
        stops = [stop for stop in stops if stop.trial or stop.role]
    for stop in stops:
        sign, told = Text("·", "dim"), plain("not run", "dim")
        if stop.trial:
            sign = Text(GLYPHS[stop.trial.answer], STYLES[TONES[stop.trial.answer]])
            told = plain(stop.trial.how)
        arrow = {"before": "┐", "after": "┘ here", "between": "│ or here"}.get(stop.role, "")
        table.add_row(plain(stop.name), sign, told, Text(arrow, "bold"))
    console.print(table)


def runs(seen: PartView, console: Console, titled: bool) -> None:
    """A row a run: a dot for each toggle, filled where it is in the run."""
    if titled:
        console.print(plain(f"{seen.part.name}: {seen.title}", "bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("run", justify="right")
    names = seen.part.toggles
    table.add_column(f"{len(names)} toggles" if len(names) != 1 else "1 toggle", no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("")
    table.add_column("outcome", overflow="fold")
    for row in seen.rows:
        dots = Text()
        for name in names:
            inside = name in row.toggles
            colour = "" if inside else "dim"
            dots.append("●" if inside else "·", "bold red" if name in seen.culprits else colour)
        mark = Text(GLYPHS[row.answer], STYLES[TONES[row.answer]])
        named = " + ".join(sorted(row.toggles)) if 0 < len(row.toggles) < 3 else ""
        why = view.WHY[row.why]
        told = f"{why}: {named}" if named and row.why == "proof" else why
        table.add_row(str(row.number), dots, plain(told, "dim"), mark, plain(row.told))
    console.print(table)
    console.print(plain(f"  columns: {' '.join(names)}", "dim"))
    for name, reason in seen.part.refused.items():
        console.print(plain(f"  not tried: {name} ({reason})", "dim"))
