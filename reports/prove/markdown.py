"""A run as Markdown, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from harness.store.prove.values import Cell, Run
from reports import texts
from reports.prove import life, terminal, view
from reports.prove.view import Box, View

# GitHub cuts a job's summary at 1 MiB; what does not fit is counted.
LIMIT = 900_000
LONGEST = 20_000  # of one example


def text(runs: Run | Sequence[Run]) -> str:
    seen = view.make(runs)
    parts = [heading(seen), facts(seen)]
    if seen.other_problems:
        parts.append("\n".join(f"- **{escaped(problem)}**" for problem in seen.other_problems))
    if seen.rows and seen.columns:
        parts.append(single(seen) if seen.single else matrix(seen))
        parts.append(legend(seen))
    if seen.kind == "lifecycle":
        parts.append(differences(seen))
    parts.append(reasons(seen))
    size = sum(len(part.encode(errors="replace")) for part in parts)
    bad = [cell for cell in seen.not_good if cell.verdict]
    for place, cell in enumerate(bad):
        part = folded(cell)
        size += len(part.encode(errors="replace")) + 2
        if size > LIMIT:
            parts.append(f"… and {len(bad) - place} more cells that are not proven.")
            break
        parts.append(part)
    if not seen.green and seen.kind == "prove":
        parts.append("Again, only what is not proven: `unfix prove --failed`")
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(seen: View) -> str:
    what = "Guard proof" if seen.kind == "prove" else "Lives of the bugs"
    return f"## {'✓' if seen.green else '✗'} {what}: {'green' if seen.green else 'RED'}"


def facts(seen: View) -> str:
    counts = ", ".join(texts.counted(seen.run.counts)) or "no cells"
    where = escaped(terminal.on_releases(seen))
    devices = escaped(", ".join(seen.devices))
    took = texts.duration(seen.run.seconds)
    return f"**{counts}** on SGLang {where}{', ' if devices else ''}{devices}, in {took}."


def matrix(seen: View) -> str:
    heads = ["toggle", *(column.label for column in seen.columns)]
    ends = ["had the bug"] if seen.kind == "lifecycle" else []
    rows = []
    for row in seen.rows:
        ends_here = [escaped(row.life.span or "")] if ends else []
        rows.append([code(row.toggle.id), *(cell_of(box) for box in row.boxes), *ends_here])
    return table([escaped(head) for head in heads + ends], rows, ":-:")


def single(seen: View) -> str:
    rows = []
    for row in seen.rows:
        box = row.boxes[0]
        said = ", ".join(texts.counted(box.counts)) if len(box.counts) > 1 else box.mark
        sign = texts.MARKS[box.mark].glyph
        took = texts.duration(box.seconds) if box.seconds else ""
        guards = str(len(box.cells) or "")
        rows.append([code(row.toggle.id), guards, f"{sign} {said}", terminal.reach(box), took])
    return table(["toggle", "guards", "verdict", "least reach fixed / buggy", "time"], rows, "---")


def table(heads: list[str], rows: list[list[str]], align: str) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + f"{align}|" * (len(heads) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def cell_of(box: Box) -> str:
    mark = texts.MARKS[box.mark]
    return mark.glyph.strip() if mark.good else f"{mark.glyph} **{mark.word}**"


def legend(seen: View) -> str:
    """The signs that stand without their word."""
    used = {box.mark for row in seen.rows for box in row.boxes}
    marks = [mark for mark in texts.MARKS.values() if mark.word in used and mark.good]
    if seen.single:
        return ""
    return " · ".join(f"{mark.glyph} {mark.word}" for mark in marks if mark.glyph.strip())


def differences(seen: View) -> str:
    return "\n".join(
        f"- ≠ {code(row.toggle.id)} on {escaped(on.release)}: {escaped(life.in_words(on))}"
        for row in seen.rows
        for on in row.life.contradictions
    )


def reasons(seen: View) -> str:
    found = sorted(seen.not_applicable.items(), key=lambda pair: -len(pair[1]))
    lines = [f"- {len(cells)} cells: {escaped(why)}" for why, cells in found]
    if not lines:
        return ""
    return "<details><summary>n/a, and why</summary>\n\n" + "\n".join(lines) + "\n\n</details>"


def folded(cell: Cell) -> str:
    word = texts.word_of(cell.verdict)
    mark = texts.MARKS[word]
    side = view.telling(cell)
    where = f"{cell.toggle} on {cell.release}, {cell.device}"
    title = f"{mark.glyph} <b>{word}</b> {escaped(where)}: {escaped(texts.short_guard(cell.guard))}"
    parts = [f"<details><summary>{title}</summary>", escaped(cell.guard), mark.meaning]
    if view.reason(cell):
        parts.append(escaped(view.reason(cell)))
    if side:
        parts.append(escaped(texts.happened(side.side, side.outcome, side.reach)) + ".")
        if side.headline:
            parts.append(f"**{escaped(side.headline)}**")
        if side.example:
            parts.append(block("\n".join(side.example)))
        if side.replay:
            parts.append(block(side.replay))
    return "\n\n".join([*parts, "</details>"])


def escaped(text: str) -> str:
    """Text in a line of Markdown or in a table: nothing in it is read as markup."""
    line = " ".join(texts.visible(text).split())
    line = html.escape(line, quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", lambda match: f"&#{ord(match[0])};", line).replace(
        "@", "@\u2060"
    )


def code(text: str) -> str:
    """A name in the letters of code, safe in a table."""
    return f"<code>{escaped(text)}</code>"


def block(text: str) -> str:
    """A fenced block, with a fence longer than any inside."""
    shown = texts.visible(text)
    if len(shown) > LONGEST:
        shown = shown[:LONGEST] + f"\n… {len(shown) - LONGEST} more characters"
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{shown}\n{fence}"
