"""A matrix run as Markdown, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

from harness.store.matrix.values import AttemptOutcome, MatrixCellResult, MatrixRun
from reports.matrix import view
from reports.matrix.view import OUTCOME_MARKS, MatrixView
from reports.shared import formatting
from reports.shared.formatting import to_single_line
from reports.shared.markdown import escape_text, render_code, render_code_block, render_table

MAX_FAILURES = 30
MAX_SHARES = 60


def render_markdown(run: MatrixRun) -> str:
    seen = view.make_view(run)
    parts = [render_heading(seen), render_facts(seen)]
    parts.append("\n".join(f"- **{escape_text(problem)}**" for problem in run.problems))
    parts.append("\n".join(f"- {escape_text(to_single_line(note, 300))}" for note in run.notes))
    parts += [render_failure(run, cell) for cell in seen.failures[:MAX_FAILURES]]
    if len(seen.failures) > MAX_FAILURES:
        parts.append(f"… and {len(seen.failures) - MAX_FAILURES} more.")
    parts.append(render_shares(seen))
    return "\n\n".join(part for part in parts if part) + "\n"


def render_heading(matrix_view: MatrixView) -> str:
    sign, word = ("✓", "green") if matrix_view.green else ("✗", "RED")
    return f"## {sign} Matrix {escape_text(to_single_line(matrix_view.run.name))}: {word}"


def render_facts(matrix_view: MatrixView) -> str:
    said = [f"{number} {mark.word}" for mark, number in matrix_view.counts] or ["no cells"]
    told = escape_text(", ".join(f"{name}: {fact}" for name, fact in matrix_view.facts))
    return (
        f"**{', '.join(said)}**, in {formatting.format_duration(matrix_view.run.seconds)}. {told}."
    )


def render_failure(run: MatrixRun, cell: MatrixCellResult) -> str:
    title = f"{OUTCOME_MARKS[cell.outcome_word].glyph} <b>{cell.outcome_word}</b> {escape_text(view.format_values(cell))}"
    parts = [
        f"<details><summary>{title}</summary>",
        f"{escape_text(view.describe_attempts(cell))}.",
    ]
    if log := view.get_output_tail(cell):
        parts.append(render_code_block(log))
    parts.append(render_code_block(view.make_replay_command(run, cell)))
    return "\n\n".join([*parts, "</details>"])


def render_shares(matrix_view: MatrixView) -> str:
    if not matrix_view.failures:
        return ""
    rows = [
        [
            escape_text(to_single_line(axis.name, 30)),
            render_code(to_single_line(share.value, 40)),
            f"{share.fraction_text} ({share.percent:.0f}%)",
            ", ".join(
                f"{n} {word}" for word, n in share.counts.items() if word != AttemptOutcome.GREEN
            ),
        ]
        for axis in matrix_view.axes
        for share in axis.shares
    ]
    if not rows:
        return ""
    more = f"\n\n… and {len(rows) - MAX_SHARES} more." if len(rows) > MAX_SHARES else ""
    heads = ["axis", "value", "green", "the others"]
    return f"### By value\n\n{render_table(heads, rows[:MAX_SHARES], '---')}{more}"
