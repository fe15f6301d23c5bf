"""An audit as Markdown."""

from __future__ import annotations

from harness.runs.audit.release_audit import ReleaseAudit
from reports.audit import view
from reports.shared import markdown
from reports.shared.markdown import escape_text


def render_markdown(audit: ReleaseAudit) -> str:
    unknown = [
        f"- {count}: {escape_text(reason)}" for reason, count in view.count_unknown_reasons(audit)
    ]
    return markdown.join_parts(
        [
            f"## {escape_text(view.describe_audit(audit))}",
            "\n".join(
                f"- {escape_text(deployment)}"
                for deployment in view.list_uncounted_deployments(audit)
            ),
            markdown.render_report_table(view.make_headline_table(audit)),
            markdown.render_report_table(view.make_finding_table(audit), len(audit.findings)),
            *(["### Cannot tell", "\n".join(unknown)] if unknown else []),
        ]
    )
