"""A run as Markdown, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from harness.store.prove.values import CellResult, ProveRun
from reports.prove import bug_lifetime, terminal, view
from reports.prove.view import MatrixBox, ProofView
from reports.shared import formatting
from reports.shared.markdown import escape_text, render_code, render_code_block, render_table

# GitHub cuts a job's summary at 1 MiB; what does not fit is counted.
MAX_BYTES = 900_000


def render_markdown(runs: ProveRun | Sequence[ProveRun]) -> str:
    seen = view.make_view(runs)
    parts = [render_heading(seen), render_facts(seen)]
    if seen.other_problems:
        parts.append("\n".join(f"- **{escape_text(problem)}**" for problem in seen.other_problems))
    if seen.rows and seen.columns:
        parts.append(render_single_release(seen) if seen.has_single_column else render_matrix(seen))
        parts.append(render_legend(seen))
    if seen.kind == "lifecycle":
        parts.append(render_contradictions(seen))
    parts.append(render_reasons(seen))
    size = sum(len(part.encode(errors="replace")) for part in parts)
    bad = [cell for cell in seen.failed_cells if cell.verdict]
    for place, cell in enumerate(bad):
        part = render_failure(cell)
        size += len(part.encode(errors="replace")) + 2
        if size > MAX_BYTES:
            parts.append(f"… and {len(bad) - place} more cells that are not proven.")
            break
        parts.append(part)
    if not seen.green and seen.kind == "prove":
        parts.append("Again, only what is not proven: `unfix prove --failed`")
    return "\n\n".join(part for part in parts if part) + "\n"


def render_heading(proof_view: ProofView) -> str:
    what = "Guard proof" if proof_view.kind == "prove" else "Lives of the bugs"
    return f"## {'✓' if proof_view.green else '✗'} {what}: {'green' if proof_view.green else 'RED'}"


def render_facts(proof_view: ProofView) -> str:
    counts = ", ".join(formatting.describe_counts(proof_view.run.counts)) or "no cells"
    where = escape_text(terminal.describe_releases(proof_view))
    devices = escape_text(", ".join(proof_view.devices))
    took = formatting.format_duration(proof_view.run.seconds)
    return f"**{counts}** on SGLang {where}{', ' if devices else ''}{devices}, in {took}."


def render_matrix(proof_view: ProofView) -> str:
    heads = ["toggle", *(column.label for column in proof_view.columns)]
    ends = ["had the bug"] if proof_view.kind == "lifecycle" else []
    rows = []
    for row in proof_view.rows:
        ends_here = [escape_text(row.lifetime.span or "")] if ends else []
        rows.append(
            [render_code(row.toggle.id), *(render_box(box) for box in row.boxes), *ends_here]
        )
    return render_table([escape_text(head) for head in heads + ends], rows, ":-:")


def render_single_release(proof_view: ProofView) -> str:
    rows = []
    for row in proof_view.rows:
        box = row.boxes[0]
        said = (
            ", ".join(formatting.describe_counts(box.counts)) if len(box.counts) > 1 else box.mark
        )
        sign = formatting.MARKS[box.mark].glyph
        took = formatting.format_duration(box.seconds) if box.seconds else ""
        guards = str(len(box.cells) or "")
        rows.append(
            [render_code(row.toggle.id), guards, f"{sign} {said}", terminal.format_reach(box), took]
        )
    return render_table(
        ["toggle", "guards", "verdict", "least reach fixed / buggy", "time"], rows, "---"
    )


def render_box(box: MatrixBox) -> str:
    mark = formatting.MARKS[box.mark]
    return mark.glyph.strip() if mark.good else f"{mark.glyph} **{mark.word}**"


def render_legend(proof_view: ProofView) -> str:
    """The signs that stand without their word."""
    used = {box.mark for row in proof_view.rows for box in row.boxes}
    marks = [mark for mark in formatting.MARKS.values() if mark.word in used and mark.good]
    if proof_view.has_single_column:
        return ""
    return " · ".join(f"{mark.glyph} {mark.word}" for mark in marks if mark.glyph.strip())


def render_contradictions(proof_view: ProofView) -> str:
    return "\n".join(
        f"- ≠ {render_code(row.toggle.id)} on {escape_text(on.release)}: {escape_text(bug_lifetime.describe_contradiction(on))}"
        for row in proof_view.rows
        for on in row.lifetime.contradictions
    )


def render_reasons(proof_view: ProofView) -> str:
    found = sorted(proof_view.not_applicable.items(), key=lambda pair: -len(pair[1]))
    lines = [f"- {len(cells)} cells: {escape_text(why)}" for why, cells in found]
    if not lines:
        return ""
    return "<details><summary>n/a, and why</summary>\n\n" + "\n".join(lines) + "\n\n</details>"


def render_failure(cell: CellResult) -> str:
    word = formatting.get_verdict_word(cell.verdict)
    mark = formatting.MARKS[word]
    side = view.choose_decisive_side(cell)
    where = f"{cell.toggle} on {cell.release}, {cell.device}"
    title = f"{mark.glyph} <b>{word}</b> {escape_text(where)}: {escape_text(formatting.get_test_name(cell.guard))}"
    parts = [f"<details><summary>{title}</summary>", escape_text(cell.guard), mark.meaning]
    if view.describe_reason(cell):
        parts.append(escape_text(view.describe_reason(cell)))
    if side:
        parts.append(
            escape_text(formatting.describe_side(side.side, side.outcome, side.reach)) + "."
        )
        if side.headline:
            parts.append(f"**{escape_text(side.headline)}**")
        if side.example:
            parts.append(render_code_block("\n".join(side.example)))
        if side.replay:
            parts.append(render_code_block(side.replay))
    return "\n\n".join([*parts, "</details>"])
