"""A run on a terminal: a table, what is not proven with its example, and one line in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.store.prove.values import CellResult, ProveRun
from reports.prove import bug_lifetime, view
from reports.prove.view import MatrixBox, ProofView, ReleaseColumn, ToggleRow
from reports.shared import formatting
from reports.shared.terminal import TONE_STYLES, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLE_LINES = 4
BUG_SPAN_HEADER = "had bug"
MAX_CELLS = 20  # of what is not proven; the rest is counted


def print_run(runs: ProveRun | Sequence[ProveRun], console: Console) -> None:
    seen = view.make_view(runs)
    if seen.rows and seen.columns:
        if seen.has_single_column and seen.kind != "lifecycle":
            print_single_release(seen, console)
        else:
            print_matrix(seen, console)
        console.print()
    if seen.kind == "lifecycle":
        print_contradictions(seen, console)
    print_not_proven(seen, console)
    print_not_applicable(seen, console)
    console.print(format_summary(seen), soft_wrap=True)


def get_word_style(word: str) -> str:
    mark = formatting.MARKS.get(word)
    return TONE_STYLES[mark.tone] if mark else "bold red"


def print_single_release(proof_view: ProofView, console: Console) -> None:
    names = max(len(row.toggle.id) for row in proof_view.rows) + 1
    longest = max(format_verdicts(row.boxes[0]).cell_len for row in proof_view.rows)
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
    for family in proof_view.families:
        table.add_row(to_plain_text(family.name, "dim"))
        for row in family.rows:
            told = to_plain_text(row.toggle.title, "dim")
            told.truncate(room, overflow="ellipsis")
            table.add_row(
                to_plain_text(" " + row.toggle.id),
                str(len(row.boxes[0].cells) or ""),
                format_verdicts(row.boxes[0]),
                format_reach(row.boxes[0]),
                formatting.format_duration(row.boxes[0].seconds) if row.boxes[0].seconds else "",
                *([told] if wide else []),
            )
    console.print(table)


def format_verdicts(box: MatrixBox) -> Text:
    """'proven', or each verdict with its count where the guards do not agree."""
    counts = box.counts or {box.mark: 1}
    words = sorted(counts, key=lambda word: formatting.SEVERITY.get(word, -1))
    if len(words) == 1:
        return Text(words[0], style=get_word_style(words[0]))
    parts = [Text(f"{counts[word]} {word}", style=get_word_style(word)) for word in words]
    return Text(", ").join(parts)


def format_reach(box: MatrixBox) -> str:
    numbers = [box.least_reach("fixed"), box.least_reach("buggy")]
    if numbers == [None, None]:
        return ""
    return " / ".join("-" if number is None else str(number) for number in numbers)


def print_matrix(proof_view: ProofView, console: Console) -> None:
    """Toggles across releases, in as many pieces as the width asks for."""
    lifecycle = proof_view.kind == "lifecycle"
    beside = {row.toggle.id: format_lifetime(row) for row in proof_view.rows} if lifecycle else {}
    names = min(
        max(len(row.toggle.id) for row in proof_view.rows) + 1, 40 if console.width > 117 else 28
    )
    used = list(dict.fromkeys(box.mark for row in proof_view.rows for box in row.boxes))

    def fits(short: bool) -> bool:
        room = console.width - names - 1 - measure_last_column(beside)
        return (
            measure_widest(proof_view.columns, used, short=short) * len(proof_view.columns) <= room
        )

    short = not fits(False)
    if short and lifecycle:
        beside = {row.toggle.id: format_lifetime(row, short=True) for row in proof_view.rows}
    each = measure_widest(proof_view.columns, used, short=short)
    room = console.width - names - 1 - measure_last_column(beside)
    pieces = max(1, room // each)
    for start in range(0, len(proof_view.columns), pieces):
        chosen = range(start, min(start + pieces, len(proof_view.columns)))
        last = chosen.stop == len(proof_view.columns)
        console.print(make_table_piece(proof_view, chosen, names, short, beside if last else {}))
        if not last:
            console.print()
    if short:
        print_legend(used, console)


def measure_last_column(lifetimes: dict[str, Text]) -> int:
    """The room that the last column takes."""
    return (
        max([len(BUG_SPAN_HEADER), *(text.cell_len for text in lifetimes.values())])
        if lifetimes
        else 0
    )


def measure_widest(columns: Sequence[ReleaseColumn], words: Iterable[str], *, short: bool) -> int:
    marks = [formatting.MARKS[word].short if short else word for word in words]
    return 1 + max(
        [len(format_label(column, short)) for column in columns] + [len(m) for m in marks]
    )


def format_label(column: ReleaseColumn, short: bool) -> str:
    return shorten_release(column.label) if short else column.label


def shorten_release(release: str) -> str:
    """As `drift` has it where there is little room: '.23'."""
    return release.removeprefix("0.5")


def make_table_piece(
    proof_view: ProofView,
    column_range: range,
    name_width: int,
    short: bool,
    lifetimes: dict[str, Text],
) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    grid.add_column("toggle", no_wrap=True, overflow="ellipsis", max_width=name_width)
    for place in column_range:
        grid.add_column(
            format_label(proof_view.columns[place], short), justify="center", no_wrap=True
        )
    if lifetimes:
        grid.add_column(BUG_SPAN_HEADER, no_wrap=True)
    for family in proof_view.families:
        grid.add_row(to_plain_text(family.name, "dim"))
        for row in family.rows:
            boxes = [row.boxes[place] for place in column_range]
            told = [lifetimes[row.toggle.id]] if lifetimes else []
            grid.add_row(
                to_plain_text(" " + row.toggle.id),
                *(format_mark(box, short) for box in boxes),
                *told,
            )
    return grid


def format_mark(box: MatrixBox, short: bool) -> Text:
    shown = formatting.MARKS[box.mark]
    word = shown.short if short or box.mark in ("absent", "not run") else shown.word
    return Text(word, style=get_word_style(box.mark))


def format_lifetime(row: ToggleRow, *, short: bool = False) -> Text:
    """From which release to which one running found the bug."""
    if row.lifetime.first_buggy and short:
        told = to_plain_text(
            "-".join(
                dict.fromkeys(
                    map(shorten_release, (row.lifetime.first_buggy, row.lifetime.last_buggy))
                )
            )
        )
    elif row.lifetime.first_buggy:
        told = to_plain_text(row.lifetime.span)
    else:
        told = Text("none" if row.lifetime.was_observed else "", style="dim")
    if row.lifetime.contradictions and not short:
        told.append(f" {len(row.lifetime.contradictions)} ≠", style="bold red")
    return told


def print_legend(words: Iterable[str], console: Console) -> None:
    """What the short marks stand for, those alone that are there."""
    marks = [
        formatting.MARKS[word] for word in sorted(words, key=lambda word: formatting.SEVERITY[word])
    ]
    lines = [Text()]
    for mark in marks:
        if not mark.short.strip() or mark.short == mark.word:
            continue
        said = Text.assemble((mark.short, get_word_style(mark.word)), f" {mark.word}   ")
        if lines[-1].cell_len + said.cell_len > console.width:
            lines.append(Text())
        lines[-1].append_text(said)
    if lines[0]:
        console.print()
    for line in lines:
        line.rstrip()
        if line:
            console.print(line)


def print_contradictions(proof_view: ProofView, console: Console) -> None:
    for row in proof_view.rows:
        for on in row.lifetime.contradictions:
            said = f"{row.toggle.id} on {on.release}: {bug_lifetime.describe_contradiction(on)}"
            console.print(Text.assemble(("differs  ", "bold red"), to_plain_text(said)))
    if any(row.lifetime.contradictions for row in proof_view.rows):
        console.print()


def print_not_proven(proof_view: ProofView, console: Console) -> None:
    bad = [cell for cell in proof_view.failed_cells if cell.verdict]
    for cell in bad[:MAX_CELLS]:
        print_failed_cell(cell, console)
        console.print()
    if len(bad) > MAX_CELLS:
        console.print(
            Text(f"{len(bad) - MAX_CELLS} more cells are not proven; the report has them all.")
        )
        console.print()


def print_failed_cell(cell: CellResult, console: Console) -> None:
    """One cell that is not proven: what happened, the smallest example, and how to run it again."""
    word = formatting.get_verdict_word(cell.verdict)
    head = Text.assemble((word, get_word_style(word)), "  ", to_plain_text(cell.toggle, "bold"))
    head.append_text(to_plain_text(f" on {cell.release}, {cell.device}", "dim"))
    console.print(head)
    console.print(indent_text(to_plain_text(cell.guard, "dim")), soft_wrap=True)
    side = view.choose_decisive_side(cell)
    if view.describe_reason(cell):
        console.print(
            Padding(to_plain_text(view.describe_reason(cell)), (0, 0, 0, 4), expand=False)
        )
    elif side:
        said = formatting.describe_side(side.side, side.outcome, side.reach)
        console.print(Padding(to_plain_text(said), (0, 0, 0, 4), expand=False))
    if side is None:
        return
    if side.headline:
        console.print(Padding(to_plain_text(side.headline, "bold"), (0, 0, 0, 4), expand=False))
    for line in side.example[:EXAMPLE_LINES]:
        cut = to_plain_text(line)
        cut.truncate(max(20, console.width - 6), overflow="ellipsis")
        console.print(indent_text(cut, 6), soft_wrap=True)
    if len(side.example) > EXAMPLE_LINES:
        rest = len(side.example) - EXAMPLE_LINES
        console.print(indent_text(Text(f"… {rest} more lines", style="dim"), 6))
    if side.replay:
        replay = Text.assemble(("replay: ", "dim"), to_plain_text(side.replay))
        console.print(indent_text(replay), soft_wrap=True)


def indent_text(text: Text, width: int = 4) -> Text:
    return Text(" " * width).append_text(text)


def print_not_applicable(proof_view: ProofView, console: Console) -> None:
    """Each reason once, with how many cells gave it."""
    reasons = proof_view.not_applicable
    for why, cells in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
        number = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        console.print(to_plain_text(f"n/a: {number}: {why}", "dim"))
    names = proof_view.known_unguarded
    if names:
        console.print(
            to_plain_text(f"no suite reaches yet, as their files say: {', '.join(names)}", "dim")
        )
    if reasons or names:
        console.print()


def format_summary(proof_view: ProofView) -> Text:
    """'61 cells proven, 23 n/a, on 0.5.23, cpu, in 73 s: green'."""
    first = ("proven", "has the fix", "has the bug")
    counts = formatting.describe_counts(proof_view.run.counts, first) or ["no cells"]
    if counts[0].endswith(" proven"):
        number, _, word = counts[0].partition(" ")
        counts[0] = f"{number} {'cell' if number == '1' else 'cells'} {word}"
    said = ", ".join([*counts, f"on {describe_releases(proof_view)}", *proof_view.devices])
    running = proof_view.run.status == "running"
    took = (
        "still running" if running else f"in {formatting.format_duration(proof_view.run.seconds)}"
    )
    line = to_plain_text(f"{said}, {took}: ")
    if proof_view.green:
        return line.append("green", style="bold green")
    line.append("red", style="bold red")
    for problem in proof_view.other_problems:
        line.append("\n  ").append_text(to_plain_text(problem, "red"))
    if (
        proof_view.kind == "prove"
        and proof_view.failed_cells
        and proof_view.run.status == "finished"
    ):
        line.append("\nAgain, only what is not proven: ").append(
            "unfix prove --failed", style="bold"
        )
    return line


def describe_releases(proof_view: ProofView) -> str:
    releases = proof_view.releases
    if len(releases) <= 4:
        return ", ".join(releases) or "no release"
    return f"{len(releases)} releases from {releases[0]} to {releases[-1]}"
