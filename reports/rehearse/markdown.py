"""A rehearsal as Markdown, for the summary of a job."""

from __future__ import annotations

from harness.store.rehearse.values import RehearsalRun
from reports.rehearse import view
from reports.shared import markdown
from reports.shared.markdown import escape_text, render_code_block


def render_markdown(run: RehearsalRun) -> str:
    parts = [
        markdown.render_heading("Rehearsal", run.green),
        view.describe_run(run),
        markdown.render_list(map(escape_text, run.problems)),
        markdown.render_report_table(view.make_table(run)),
        markdown.render_report_table(view.make_kernel_table(run)),
        markdown.render_report_table(view.make_unchecked_table(run)),
        escape_text(view.describe_stand_ins(run)),
    ]
    parts += [
        markdown.render_folded(
            escape_text(f"{finding.rank}: {result.name}: {finding.headline}"),
            [render_code_block(finding.detail)],
        )
        for result, finding in view.list_findings(run)
        if finding.detail
    ]
    return markdown.join_parts(parts)
