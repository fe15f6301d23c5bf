"""A matrix run as Markdown, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

from harness.core.wording import format_duration
from harness.store.matrix.values import MatrixCellResult, MatrixRun
from reports.matrix import tables, view
from reports.matrix.view import OUTCOME_MARKS
from reports.shared import markdown
from reports.shared.formatting import to_single_line
from reports.shared.markdown import escape_text, render_code_block
from reports.shared.marks import format_counts

MAX_FAILURES = 30
MAX_SHARES = 60


def render_markdown(run: MatrixRun) -> str:
    matrix_view = view.make_view(run)
    counts = format_counts(matrix_view.counts, "no cells")
    facts = escape_text(", ".join(f"{name}: {fact}" for name, fact in matrix_view.facts))
    failures = [render_failure(run, cell) for cell in matrix_view.failures[:MAX_FAILURES]]
    more = len(matrix_view.failures) - len(failures)
    return markdown.join_parts(
        [
            markdown.render_heading(f"Matrix {escape_text(to_single_line(run.name))}", run.green),
            f"**{counts}**, in {format_duration(run.seconds)}. {facts}.",
            markdown.render_list(run.problems),
            "\n".join(f"- {escape_text(to_single_line(note, 300))}" for note in run.notes),
            *failures,
            f"… and {more} more." if more else "",
            markdown.render_report_table(tables.make_share_table(matrix_view), MAX_SHARES),
        ]
    )


def render_failure(run: MatrixRun, cell: MatrixCellResult) -> str:
    word, log = cell.outcome_word, view.get_output_tail(cell)
    values = escape_text(view.format_values(cell))
    return markdown.render_folded(
        f"{OUTCOME_MARKS[word].glyph} <b>{word}</b> {values}",
        [
            f"{escape_text(view.describe_attempts(cell))}.",
            render_code_block(log) if log else "",
            render_code_block(view.make_replay_command(run, cell)),
        ],
    )
