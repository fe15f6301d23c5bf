"""What changed between two rehearsals, as a page and as Markdown: what is for the worse first."""

from __future__ import annotations

from harness.store.rehearse.values import DeploymentChange, RehearsalRun
from reports.rehearse import view
from reports.shared import html_file, markdown


def render_page(runs: list[RehearsalRun], changes: list[DeploymentChange]) -> str:
    before, after = runs
    values = {
        "before": before,
        "after": after,
        "changes": changes,
        "worse": [change for change in changes if change.is_worse],
        "others": [change for change in changes if not change.is_worse],
        "view": view,
    }
    template = "rehearse/changes.html.j2"
    return html_file.render_template(
        template,
        values,
        [f"SGLang {before.release} to {after.release}"],
        [after.machine.get("unfix", "")],
        styles=("rehearse/page.css",),
    )


def render_markdown(runs: list[RehearsalRun], changes: list[DeploymentChange]) -> str:
    before, after = runs
    return markdown.join_parts(
        [
            markdown.render_heading("Rehearsals", not any(change.is_worse for change in changes)),
            view.describe_changes(before, after, changes),
            markdown.render_report_table(view.make_change_table(runs, changes)),
        ]
    )
