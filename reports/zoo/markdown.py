"""A zoo run as Markdown, for the summary of a job."""

from __future__ import annotations

from harness.store.zoo.values import ZooRun
from reports.shared import markdown
from reports.shared.markdown import escape_text, render_code_block
from reports.zoo import view


def render_markdown(run: ZooRun) -> str:
    parts = [
        markdown.render_heading("Zoo", run.green),
        view.describe_run(run),
        markdown.render_list(map(escape_text, run.problems)),
        *map(markdown.render_report_table, view.make_tables(run)),
        *map(markdown.render_report_table, view.make_feature_tables(run)),
        escape_text(view.describe_stand_ins(run)),
    ]
    parts += [
        markdown.render_folded(
            escape_text(f"{result.name}: {claim.claim}: {claim.headline}"),
            [render_code_block(claim.detail)],
        )
        for result, claim in view.list_failures(run)
        if claim.detail
    ]
    return markdown.join_parts(parts)
