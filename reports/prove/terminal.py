"""A run on a terminal: a table, what is not proven with its example, and one line in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.store.prove.values import Cell, Run
from reports.prove import life, view
from reports.prove.view import Box, Column, Row, View
from reports.shared import texts
from reports.shared.terminal import STYLES, plain

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLE_LINES = 4
BUG_SPAN = "had bug"
SHOWN = 20  # of what is not proven; the rest is counted


def show(runs: Run | Sequence[Run], console: Console) -> None:
    seen = view.make(runs)
    if seen.rows and seen.columns:
        if seen.single and seen.kind != "lifecycle":
            one_release(seen, console)
        else:
            matrix(seen, console)
        console.print()
    if seen.kind == "lifecycle":
        contradictions(seen, console)
    not_proven(seen, console)
    not_applicable(seen, console)
    console.print(summary(seen), soft_wrap=True)


def style(word: str) -> str:
    mark = texts.MARKS.get(word)
    return STYLES[mark.tone] if mark else "bold red"


def one_release(seen: View, console: Console) -> None:
    names = max(len(row.toggle.id) for row in seen.rows) + 1
    longest = max(verdicts(row.boxes[0]).cell_len for row in seen.rows)
    room = console.width - min(names, 40) - longest - 37  # for what is wrong without the fix
    wide = room >= 30
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("toggle", no_wrap=True, overflow="ellipsis", max_width=40 if wide else 28)
    table.add_column("guards", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    table.add_column("least reach\nfixed/buggy", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    if wide:
        table.add_column("without the fix", no_wrap=True)
    for family in seen.families:
        table.add_row(plain(family.name, "dim"))
        for row in family.rows:
            told = plain(row.toggle.title, "dim")
            told.truncate(room, overflow="ellipsis")
            table.add_row(
                plain(" " + row.toggle.id),
                str(len(row.boxes[0].cells) or ""),
                verdicts(row.boxes[0]),
                reach(row.boxes[0]),
                texts.duration(row.boxes[0].seconds) if row.boxes[0].seconds else "",
                *([told] if wide else []),
            )
    console.print(table)


def verdicts(box: Box) -> Text:
    """'proven', or each verdict with its count where the guards do not agree."""
    counts = box.counts or {box.mark: 1}
    words = sorted(counts, key=lambda word: texts.SEVERITY.get(word, -1))
    if len(words) == 1:
        return Text(words[0], style=style(words[0]))
    parts = [Text(f"{counts[word]} {word}", style=style(word)) for word in words]
    return Text(", ").join(parts)


def reach(box: Box) -> str:
    numbers = [box.least_reach("fixed"), box.least_reach("buggy")]
    if numbers == [None, None]:
        return ""
    return " / ".join("-" if number is None else str(number) for number in numbers)


def matrix(seen: View, console: Console) -> None:
    """Toggles across releases, in as many pieces as the width asks for."""
    lifecycle = seen.kind == "lifecycle"
    beside = {row.toggle.id: lived(row) for row in seen.rows} if lifecycle else {}
    names = min(max(len(row.toggle.id) for row in seen.rows) + 1, 40 if console.width > 117 else 28)
    used = list(dict.fromkeys(box.mark for row in seen.rows for box in row.boxes))

    def fits(short: bool) -> bool:
        room = console.width - names - 1 - right(beside)
        return widest(seen.columns, used, short=short) * len(seen.columns) <= room

    short = not fits(False)
    if short and lifecycle:
        beside = {row.toggle.id: lived(row, short=True) for row in seen.rows}
    each = widest(seen.columns, used, short=short)
    room = console.width - names - 1 - right(beside)
    pieces = max(1, room // each)
    for start in range(0, len(seen.columns), pieces):
        chosen = range(start, min(start + pieces, len(seen.columns)))
        last = chosen.stop == len(seen.columns)
        console.print(piece(seen, chosen, names, short, beside if last else {}))
        if not last:
            console.print()
    if short:
        legend(used, console)


def right(beside: dict[str, Text]) -> int:
    """The room that the last column takes."""
    return max([len(BUG_SPAN), *(text.cell_len for text in beside.values())]) if beside else 0


def widest(columns: Sequence[Column], words: Iterable[str], *, short: bool) -> int:
    marks = [texts.MARKS[word].short if short else word for word in words]
    return 1 + max([len(label(column, short)) for column in columns] + [len(m) for m in marks])


def label(column: Column, short: bool) -> str:
    return brief(column.label) if short else column.label


def brief(release: str) -> str:
    """As `drift` has it where there is little room: '.23'."""
    return release.removeprefix("0.5")


def piece(seen: View, chosen: range, names: int, short: bool, beside: dict[str, Text]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    grid.add_column("toggle", no_wrap=True, overflow="ellipsis", max_width=names)
    for place in chosen:
        grid.add_column(label(seen.columns[place], short), justify="center", no_wrap=True)
    if beside:
        grid.add_column(BUG_SPAN, no_wrap=True)
    for family in seen.families:
        grid.add_row(plain(family.name, "dim"))
        for row in family.rows:
            boxes = [row.boxes[place] for place in chosen]
            told = [beside[row.toggle.id]] if beside else []
            grid.add_row(plain(" " + row.toggle.id), *(mark(box, short) for box in boxes), *told)
    return grid


def mark(box: Box, short: bool) -> Text:
    shown = texts.MARKS[box.mark]
    word = shown.short if short or box.mark in ("absent", "not run") else shown.word
    return Text(word, style=style(box.mark))


def lived(row: Row, *, short: bool = False) -> Text:
    """From which release to which one running found the bug."""
    if row.life.first and short:
        told = plain("-".join(dict.fromkeys(map(brief, (row.life.first, row.life.last)))))
    elif row.life.first:
        told = plain(row.life.span)
    else:
        told = Text("none" if row.life.ran else "", style="dim")
    if row.life.contradictions and not short:
        told.append(f" {len(row.life.contradictions)} ≠", style="bold red")
    return told


def legend(words: Iterable[str], console: Console) -> None:
    """What the short marks stand for, those alone that are there."""
    marks = [texts.MARKS[word] for word in sorted(words, key=lambda word: texts.SEVERITY[word])]
    lines = [Text()]
    for mark in marks:
        if not mark.short.strip() or mark.short == mark.word:
            continue
        said = Text.assemble((mark.short, style(mark.word)), f" {mark.word}   ")
        if lines[-1].cell_len + said.cell_len > console.width:
            lines.append(Text())
        lines[-1].append_text(said)
    if lines[0]:
        console.print()
    for line in lines:
        line.rstrip()
        if line:
            console.print(line)


def contradictions(seen: View, console: Console) -> None:
    for row in seen.rows:
        for on in row.life.contradictions:
            said = f"{row.toggle.id} on {on.release}: {life.in_words(on)}"
            console.print(Text.assemble(("differs  ", "bold red"), plain(said)))
    if any(row.life.contradictions for row in seen.rows):
        console.print()


def not_proven(seen: View, console: Console) -> None:
    bad = [cell for cell in seen.not_good if cell.verdict]
    for cell in bad[:SHOWN]:
        explain(cell, console)
        console.print()
    if len(bad) > SHOWN:
        console.print(
            Text(f"{len(bad) - SHOWN} more cells are not proven; the report has them all.")
        )
        console.print()


def explain(cell: Cell, console: Console) -> None:
    """One cell that is not proven: what happened, the smallest example, and how to run it again."""
    word = texts.word_of(cell.verdict)
    head = Text.assemble((word, style(word)), "  ", plain(cell.toggle, "bold"))
    head.append_text(plain(f" on {cell.release}, {cell.device}", "dim"))
    console.print(head)
    console.print(indented(plain(cell.guard, "dim")), soft_wrap=True)
    side = view.telling(cell)
    if view.reason(cell):
        console.print(Padding(plain(view.reason(cell)), (0, 0, 0, 4), expand=False))
    elif side:
        said = texts.happened(side.side, side.outcome, side.reach)
        console.print(Padding(plain(said), (0, 0, 0, 4), expand=False))
    if side is None:
        return
    if side.headline:
        console.print(Padding(plain(side.headline, "bold"), (0, 0, 0, 4), expand=False))
    for line in side.example[:EXAMPLE_LINES]:
        cut = plain(line)
        cut.truncate(max(20, console.width - 6), overflow="ellipsis")
        console.print(indented(cut, 6), soft_wrap=True)
    if len(side.example) > EXAMPLE_LINES:
        rest = len(side.example) - EXAMPLE_LINES
        console.print(indented(Text(f"… {rest} more lines", style="dim"), 6))
    if side.replay:
        replay = Text.assemble(("replay: ", "dim"), plain(side.replay))
        console.print(indented(replay), soft_wrap=True)


def indented(text: Text, by: int = 4) -> Text:
    return Text(" " * by).append_text(text)


def not_applicable(seen: View, console: Console) -> None:
    """Each reason once, with how many cells gave it."""
    reasons = seen.not_applicable
    for why, cells in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
        number = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        console.print(plain(f"n/a: {number}: {why}", "dim"))
    names = seen.known_unguarded
    if names:
        console.print(plain(f"no suite reaches yet, as their files say: {', '.join(names)}", "dim"))
    if reasons or names:
        console.print()


def summary(seen: View) -> Text:
    """'61 cells proven, 23 n/a, on 0.5.23, cpu, in 73 s: green'."""
    first = ("proven", "has the fix", "has the bug")
    counts = texts.counted(seen.run.counts, first) or ["no cells"]
    if counts[0].endswith(" proven"):
        number, _, word = counts[0].partition(" ")
        counts[0] = f"{number} {'cell' if number == '1' else 'cells'} {word}"
    said = ", ".join([*counts, f"on {on_releases(seen)}", *seen.devices])
    running = seen.run.status == "running"
    took = "still running" if running else f"in {texts.duration(seen.run.seconds)}"
    line = plain(f"{said}, {took}: ")
    if seen.green:
        return line.append("green", style="bold green")
    line.append("red", style="bold red")
    for problem in seen.other_problems:
        line.append("\n  ").append_text(plain(problem, "red"))
    if seen.kind == "prove" and seen.not_good and seen.run.status == "finished":
        line.append("\nAgain, only what is not proven: ").append(
            "unfix prove --failed", style="bold"
        )
    return line


def on_releases(seen: View) -> str:
    releases = seen.releases
    if len(releases) <= 4:
        return ", ".join(releases) or "no release"
    return f"{len(releases)} releases from {releases[0]} to {releases[-1]}"
