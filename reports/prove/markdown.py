"""A run as Markdown, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from harness.store.prove.values import Cell, Run
from reports.prove import life, terminal, view
from reports.prove.view import Box, View
from reports.shared import texts
from reports.shared.markdown import block, code, escaped, table

# GitHub cuts a job's summary at 1 MiB; what does not fit is counted.
LIMIT = 900_000


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
