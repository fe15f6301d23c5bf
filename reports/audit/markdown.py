"""An audit as Markdown."""

from __future__ import annotations

from harness.runs.audit.release_audit import ReleaseAudit
from reports.audit import view
from reports.shared.markdown import escape_text, render_code, render_table


def render_markdown(audit: ReleaseAudit) -> str:
    rows = [
        [
            render_code(one.kernel),
            render_code(view.describe_location(one)),
            render_code(one.text),
            escape_text(f"{one.kind} {one.condition}"),
            escape_text(one.confirmed),
        ]
        for one in audit.findings
    ]
    parts = [f"## {escape_text(view.describe_audit(audit))}"]
    if rows:
        parts.append(render_table(["kernel", "place", "line", "when", "seen"], rows, "---"))
    untold = [
        f"- {count}: {escape_text(reason)}" for reason, count in view.count_unknown_reasons(audit)
    ]
    if untold:
        parts += ["### Cannot tell", "\n".join(untold)]
    return "\n\n".join(parts) + "\n"
