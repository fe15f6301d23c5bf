"""A proof on a terminal: a table, each unproven cell with its example, and one line in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.core.outcomes import RunStatus
from harness.core.wording import format_count, format_duration
from harness.store.prove.values import CellResult, ProveRun
from reports.prove import bug_lifetime, marks, view
from reports.prove.marks import MARKS, SEVERITY
from reports.prove.view import MatrixBox, ProofView, ReleaseColumn, ToggleRow
from reports.shared.terminal import TONE_STYLES, append_verdict, to_plain_text

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLE_LINES = 4
BUG_SPAN_HEADER = "had bug"
MAX_CELLS = 20  # unproven cells shown in full; the others are counted


def print_run(runs: ProveRun | Sequence[ProveRun], console: Console) -> None:
    proof_view = view.make_view(runs)
    # Without a cell, the reason must not stand behind a row for each toggle.
    if proof_view.rows and proof_view.columns and proof_view.run.cells:
        if proof_view.has_single_column and proof_view.kind != "lifecycle":
            print_single_release(proof_view, console)
        else:
            print_matrix(proof_view, console)
        console.print()
    if proof_view.kind == "lifecycle":
        print_contradictions(proof_view, console)
    print_not_proven(proof_view, console)
    print_not_applicable(proof_view, console)
    if proof_view.stand_ins:
        console.print(to_plain_text(proof_view.stand_ins, "dim"), soft_wrap=True)
    console.print(format_summary(proof_view), soft_wrap=True)


def get_word_style(word: str) -> str:
    mark = MARKS.get(word)
    return TONE_STYLES[mark.tone] if mark else "bold red"


def print_single_release(proof_view: ProofView, console: Console) -> None:
    names = max(len(row.toggle.id) for row in proof_view.rows) + 1
    longest = max(format_verdicts(row.boxes[0]).cell_len for row in proof_view.rows)
    title_width = console.width - min(names, 40) - longest - 37
    wide = title_width >= 30
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("toggle", no_wrap=True, overflow="ellipsis", max_width=40 if wide else 28)
    table.add_column("guards", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    table.add_column("code ran\napplied/\nreverted", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    if wide:
        table.add_column("without the fix", no_wrap=True)
    for family in proof_view.families:
        table.add_row(to_plain_text(family.name, "dim"))
        for row in family.rows:
            box = row.boxes[0]
            title = to_plain_text(row.toggle.title, "dim")
            title.truncate(title_width, overflow="ellipsis")
            table.add_row(
                to_plain_text(" " + row.toggle.id),
                str(len(box.cells) or ""),
                format_verdicts(box),
                format_reach(box),
                format_duration(box.seconds) if box.seconds else "",
                *([title] if wide else []),
            )
    console.print(table)


def format_verdicts(box: MatrixBox) -> Text:
    """Return 'proven', or each verdict with its count where the guards disagree."""
    counts = box.counts or {box.mark: 1}
    words = sorted(counts, key=lambda word: SEVERITY.get(word, -1))
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
    """Print toggles across releases, in as many tables as the width requires."""
    lifecycle = proof_view.kind == "lifecycle"
    name_width = min(
        max(len(row.toggle.id) for row in proof_view.rows) + 1, 40 if console.width > 117 else 28
    )
    words = list(dict.fromkeys(box.mark for row in proof_view.rows for box in row.boxes))

    for short in (False, True):
        lifetimes = {
            row.toggle.id: format_lifetime(row, short=short) for row in proof_view.rows if lifecycle
        }
        column_width = measure_column(proof_view.columns, words, short=short)
        last_width = max((text.cell_len for text in lifetimes.values()), default=0)
        last_width = max(last_width, len(BUG_SPAN_HEADER)) if lifecycle else 0
        width = console.width - name_width - 1 - last_width
        if column_width * len(proof_view.columns) <= width:
            break
    per_table = max(1, width // column_width)
    for start in range(0, len(proof_view.columns), per_table):
        chosen = range(start, min(start + per_table, len(proof_view.columns)))
        is_last = chosen.stop == len(proof_view.columns)
        beside = lifetimes if is_last else {}
        console.print(make_partial_matrix(proof_view, chosen, name_width, short, beside))
        if not is_last:
            console.print()
    if short:
        print_legend(words, console)


def measure_column(columns: Sequence[ReleaseColumn], words: Iterable[str], *, short: bool) -> int:
    shown = [MARKS[word].short if short else word for word in words]
    return 1 + max(map(len, [*shown, *(format_label(column, short) for column in columns)]))


def format_label(column: ReleaseColumn, short: bool) -> str:
    return shorten_release(column.label) if short else column.label


def shorten_release(release: str) -> str:
    """Return '.23', as `drift` writes it on a narrow terminal."""
    return release.removeprefix("0.5")


def make_partial_matrix(
    proof_view: ProofView,
    column_range: range,
    name_width: int,
    short: bool,
    lifetimes: dict[str, Text],
) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    grid.add_column("toggle", no_wrap=True, overflow="ellipsis", max_width=name_width)
    for place in column_range:
        label = format_label(proof_view.columns[place], short)
        grid.add_column(label, justify="center", no_wrap=True)
    if lifetimes:
        grid.add_column(BUG_SPAN_HEADER, no_wrap=True)
    for family in proof_view.families:
        grid.add_row(to_plain_text(family.name, "dim"))
        for row in family.rows:
            grid.add_row(
                to_plain_text(" " + row.toggle.id),
                *(format_mark(row.boxes[place], short) for place in column_range),
                *([lifetimes[row.toggle.id]] if lifetimes else []),
            )
    return grid


def format_mark(box: MatrixBox, short: bool) -> Text:
    mark = MARKS[box.mark]
    is_short = short or box.mark in ("absent", "not run")
    return Text(mark.short if is_short else mark.word, style=get_word_style(box.mark))


def format_lifetime(row: ToggleRow, *, short: bool) -> Text:
    """Format the first and the last release on which running showed the bug."""
    lifetime = row.lifetime
    if lifetime.first_buggy and short:
        release_names = map(shorten_release, (lifetime.first_buggy, lifetime.last_buggy))
        return to_plain_text("-".join(dict.fromkeys(release_names)))
    text = to_plain_text(lifetime.span)
    if not lifetime.first_buggy:
        text = Text("none" if lifetime.was_observed else "", style="dim")
    if lifetime.contradictions and not short:
        text.append(f" {len(lifetime.contradictions)} ≠", style="bold red")
    return text


def print_legend(words: Iterable[str], console: Console) -> None:
    """Print the words of the short marks in the table."""
    lines = [Text()]
    for mark in (MARKS[word] for word in sorted(words, key=lambda word: SEVERITY[word])):
        if not mark.short or mark.short == mark.word:
            continue
        entry = Text.assemble((mark.short, get_word_style(mark.word)), f" {mark.word}   ")
        if lines[-1].cell_len + entry.cell_len > console.width:
            lines.append(Text())
        lines[-1].append_text(entry)
    if lines[0]:
        console.print()
    for line in lines:
        line.rstrip()
        if line:
            console.print(line)


def print_contradictions(proof_view: ProofView, console: Console) -> None:
    for row in proof_view.rows:
        for bug in row.lifetime.contradictions:
            contradiction = bug_lifetime.describe_contradiction(bug)
            text = to_plain_text(f"{row.toggle.id} on {bug.release}: {contradiction}")
            console.print(Text.assemble(("differs  ", "bold red"), text))
    if any(row.lifetime.contradictions for row in proof_view.rows):
        console.print()


def print_not_proven(proof_view: ProofView, console: Console) -> None:
    failed = [cell for cell in proof_view.failed_cells if cell.verdict]
    for cell in failed[:MAX_CELLS]:
        print_failed_cell(cell, console)
        console.print()
    if len(failed) > MAX_CELLS:
        more = len(failed) - MAX_CELLS
        console.print(Text(f"{more} more cells are not proven; the report has them all.\n"))


def print_failed_cell(cell: CellResult, console: Console) -> None:
    """Print one unproven cell: its sides, the smallest example, and the command to run it again."""
    word = marks.get_verdict_word(cell.verdict)
    head = Text.assemble((word, get_word_style(word)), "  ", to_plain_text(cell.toggle, "bold"))
    head.append_text(to_plain_text(f" on {cell.release}, {cell.device}", "dim"))
    console.print(head)
    console.print(indent_text(to_plain_text(cell.guard, "dim")), soft_wrap=True)
    side = view.choose_decisive_side(cell)
    reason = view.describe_reason(cell)
    if not reason and side:
        reason = marks.describe_side(side.side, side.outcome, side.reach)
    if reason:
        console.print(Padding(to_plain_text(reason), (0, 0, 0, 4), expand=False))
    if side is None:
        return
    if side.headline:
        console.print(Padding(to_plain_text(side.headline, "bold"), (0, 0, 0, 4), expand=False))
    for line in side.example[:EXAMPLE_LINES]:
        example = to_plain_text(line)
        example.truncate(max(20, console.width - 6), overflow="ellipsis")
        console.print(indent_text(example, 6), soft_wrap=True)
    if len(side.example) > EXAMPLE_LINES:
        more = len(side.example) - EXAMPLE_LINES
        console.print(indent_text(Text(f"… {more} more lines", style="dim"), 6))
    if side.replay:
        replay = Text.assemble(("replay: ", "dim"), to_plain_text(side.replay))
        console.print(indent_text(replay), soft_wrap=True)


def indent_text(text: Text, width: int = 4) -> Text:
    return Text(" " * width).append_text(text)


def print_not_applicable(proof_view: ProofView, console: Console) -> None:
    """Print each reason once, with the number of its cells."""
    reasons = proof_view.not_applicable
    for why, cells in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
        console.print(to_plain_text(f"n/a: {format_count(len(cells), 'cell')}: {why}", "dim"))
    for why, toggles in proof_view.expected_unguarded.items():
        console.print(to_plain_text(f"no guard, as listed: {', '.join(toggles)}: {why}", "dim"))
    if reasons or proof_view.expected_unguarded:
        console.print()


def format_summary(proof_view: ProofView) -> Text:
    """Return '61 cells proven, 23 n/a, on 0.5.23, cpu, in 73 s: green'."""
    run = proof_view.run
    leading_words = ("proven", "has the fix", "has the bug")
    counts = marks.describe_counts(run.counts, leading_words) or ["no cells"]
    if proven := run.counts.get("proven"):
        counts[0] = f"{format_count(proven, 'cell')} proven"
    words = [*counts, f"on {proof_view.release_summary}", *proof_view.devices]
    running = run.status is RunStatus.RUNNING
    words.append("still running" if running else f"in {format_duration(run.seconds)}")
    line = Text()
    if proof_view.kind == "prove" and run.cells and "seed" in run.settings:
        moments = Counter(cell.moment for cell in run.cells if cell.moment and cell.sides)
        parts = [f"--seed {run.settings['seed']} drew the order of the sides"]
        parts += [f"{format_count(n, 'cell')} toggled {how}" for how, n in moments.most_common()]
        line.append(f"{'; '.join(parts)}\n", style="dim")
    line.append_text(
        append_verdict(
            to_plain_text(f"{', '.join(words)}: "), proof_view.green, proof_view.other_problems
        )
    )
    if proof_view.kind == "prove" and proof_view.failed_cells and run.status is RunStatus.FINISHED:
        line.append("\nAgain, only the cells that are not proven: ")
        line.append("unfix prove --failed", style="bold")
    return line
