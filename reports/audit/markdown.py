"""An audit as Markdown."""

from __future__ import annotations

from harness.audit.run import Audit
from reports.audit import view
from reports.shared.markdown import code, escaped, table


def text(found: Audit) -> str:
    rows = [
        [
            code(one.kernel),
            code(view.place(one)),
            code(one.text),
            escaped(f"{one.kind} {one.condition}"),
            escaped(one.confirmed),
        ]
        for one in found.findings
    ]
    parts = [f"## {escaped(view.sentence(found))}"]
    if rows:
        parts.append(table(["kernel", "place", "line", "when", "seen"], rows, "---"))
    untold = [f"- {count}: {escaped(reason)}" for reason, count in view.reasons(found)]
    if untold:
        parts += ["### Cannot tell", "\n".join(untold)]
    return "\n\n".join(parts) + "\n"
