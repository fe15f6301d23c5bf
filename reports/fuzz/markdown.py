"""A fuzzing run as Markdown, for the summary of a job."""

from __future__ import annotations

from harness.store.fuzz.values import FuzzRun
from reports.fuzz import view
from reports.shared import markdown
from reports.shared.markdown import escape_text, render_code_block


def render_markdown(run: FuzzRun) -> str:
    parts = [
        markdown.render_heading("Fuzzing", run.green),
        escape_text(view.describe_run(run)),
        markdown.render_list(run.problems),
    ]
    for failure in run.failures:
        head, lines = view.describe_failure(failure)
        parts += [f"### {escape_text(head)}", render_code_block("\n".join(lines))]
    parts += map(
        markdown.render_report_table, (view.make_test_table(run), view.make_coverage_table(run))
    )
    notes = [*view.list_left_out(run), view.describe_stand_ins(run)]
    parts.append("\n".join(f"- {escape_text(note)}" for note in notes if note))
    return markdown.join_parts(parts)
