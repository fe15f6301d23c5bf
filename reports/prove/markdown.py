"""A proof as Markdown, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.wording import format_count, format_duration
from harness.store.prove.values import CellResult, ProveRun
from reports.prove import bug_lifetime, marks, terminal, view
from reports.prove.marks import MARKS
from reports.prove.view import MatrixBox, ProofView
from reports.shared import markdown
from reports.shared.markdown import escape_text, render_code, render_code_block, render_table

# GitHub truncates a job's summary at 1 MiB; the cells beyond this are counted.
MAX_BYTES = 900_000


def render_markdown(runs: ProveRun | Sequence[ProveRun]) -> str:
    proof_view = view.make_view(runs)
    title = "Guard proof" if proof_view.kind == "prove" else "Lifetimes of the bugs"
    parts = [
        markdown.render_heading(title, proof_view.green),
        render_facts(proof_view),
        markdown.render_list(proof_view.other_problems),
    ]
    if proof_view.rows and proof_view.columns:
        single = proof_view.has_single_column
        parts += [render_single_release(proof_view)] if single else render_matrix(proof_view)
    if proof_view.kind == "lifecycle":
        parts.append(render_contradictions(proof_view))
    parts += [render_reasons(proof_view), escape_text(proof_view.stand_ins)]
    size = sum(len(part.encode(errors="replace")) for part in parts)
    failed = [cell for cell in proof_view.failed_cells if cell.verdict]
    for place, cell in enumerate(failed):
        part = render_failure(cell)
        size += len(part.encode(errors="replace")) + 2
        if size > MAX_BYTES:
            parts.append(f"… and {len(failed) - place} more cells that are not proven.")
            break
        parts.append(part)
    if not proof_view.green and proof_view.kind == "prove":
        parts.append("Again, only the cells that are not proven: `unfix prove --failed`")
    return markdown.join_parts(parts)


def render_facts(proof_view: ProofView) -> str:
    counts = ", ".join(marks.describe_counts(proof_view.run.counts)) or "no cells"
    where = escape_text(", ".join([proof_view.release_summary, *proof_view.devices]))
    return f"**{counts}** on SGLang {where}, in {format_duration(proof_view.run.seconds)}."


def render_matrix(proof_view: ProofView) -> list[str]:
    """Render the table, and a legend of the signs that stand without their word."""
    lifecycle = proof_view.kind == "lifecycle"
    heads = ["toggle", *(column.label for column in proof_view.columns)]
    heads += ["had the bug"] if lifecycle else []
    rows = [
        [
            render_code(row.toggle.id),
            *map(render_box, row.boxes),
            *([escape_text(row.lifetime.span)] if lifecycle else []),
        ]
        for row in proof_view.rows
    ]
    words = {box.mark for row in proof_view.rows for box in row.boxes}
    signs = [mark for mark in MARKS.values() if mark.word in words and mark.good and mark.glyph]
    legend = " · ".join(f"{mark.glyph} {mark.word}" for mark in signs)
    return [render_table([escape_text(head) for head in heads], rows, ":-:"), legend]


def render_single_release(proof_view: ProofView) -> str:
    rows = []
    for row in proof_view.rows:
        box = row.boxes[0]
        counts = ", ".join(marks.describe_counts(box.counts))
        verdict = counts if len(box.counts) > 1 else box.mark
        rows.append(
            [
                render_code(row.toggle.id),
                str(len(box.cells) or ""),
                f"{MARKS[box.mark].glyph} {verdict}",
                terminal.format_reach(box),
                format_duration(box.seconds) if box.seconds else "",
            ]
        )
    heads = ["toggle", "guards", "verdict", "code ran, applied / reverted", "time"]
    return render_table(heads, rows, "---")


def render_box(box: MatrixBox) -> str:
    mark = MARKS[box.mark]
    return mark.glyph if mark.good else f"{mark.glyph} **{mark.word}**"


def render_contradictions(proof_view: ProofView) -> str:
    return "\n".join(
        f"- ≠ {render_code(row.toggle.id)} on {escape_text(bug.release)}: "
        f"{escape_text(bug_lifetime.describe_contradiction(bug))}"
        for row in proof_view.rows
        for bug in row.lifetime.contradictions
    )


def render_reasons(proof_view: ProofView) -> str:
    reasons = sorted(proof_view.not_applicable.items(), key=lambda pair: -len(pair[1]))
    lines = [f"- {format_count(len(cells), 'cell')}: {escape_text(why)}" for why, cells in reasons]
    lines += [
        f"- no guard, as listed: {', '.join(map(render_code, toggles))}: {escape_text(why)}"
        for why, toggles in proof_view.expected_unguarded.items()
    ]
    return markdown.render_folded("n/a, and why", ["\n".join(lines)]) if lines else ""


def render_failure(cell: CellResult) -> str:
    mark = MARKS[marks.get_verdict_word(cell.verdict)]
    where = f"{cell.toggle} on {cell.release}, {cell.device}: {marks.get_test_name(cell.guard)}"
    parts = [escape_text(cell.guard), mark.meaning, escape_text(view.describe_reason(cell))]
    if side := view.choose_decisive_side(cell):
        parts += [
            escape_text(marks.describe_side(side.side, side.outcome, side.reach)) + ".",
            f"**{escape_text(side.headline)}**" if side.headline else "",
            render_code_block("\n".join(side.example)) if side.example else "",
            render_code_block(side.replay) if side.replay else "",
        ]
    return markdown.render_folded(f"{mark.glyph} <b>{mark.word}</b> {escape_text(where)}", parts)
