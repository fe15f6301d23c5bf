"""An audit as one HTML file: each finding with its code, its arithmetic and a plot."""

from __future__ import annotations

from math import log10

from markupsafe import Markup, escape

from harness.runs.audit.findings import AuditFinding
from harness.runs.audit.release_audit import ReleaseAudit
from reports.audit import view
from reports.shared import html_file

STYLES = ("shared/bars.css", "audit/page.css")
MAX_FINDINGS = 400  # findings with their code
_WIDTH, _LEFT, _ROW = 520, 200, 26  # of a plot


def render_page(audit: ReleaseAudit, commit: str) -> str:
    values = {
        "found": audit,
        "view": view,
        "plot": _draw_threshold,
        "most": MAX_FINDINGS,
    }
    return html_file.render_template(
        "audit/page.html.j2", values, [f"SGLang {audit.release}"], [commit], styles=STYLES
    )


def _draw_threshold(finding: AuditFinding) -> Markup:
    """Plot from where on each model's launch overflows, on a logarithmic axis up to the limit."""
    models: dict[int, list[str]] = {}
    for reach in finding.reaches if view.name_model(finding) else ():
        if reach.threshold:
            models.setdefault(reach.threshold, []).append(reach.model)
    rows = [
        (threshold, names[0] if len(names) == 1 else f"{names[0]}, {len(names) - 1} more")
        for threshold, names in sorted(models.items())
    ] or [(finding.threshold, "any model")]
    low = 10 ** max(0, int(log10(rows[0][0])) - 1)
    high = max(finding.largest, rows[-1][0] * 2, low * 10)

    def place(count: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 12) * log10(count / low) / log10(high / low)

    right, parts = place(high), []
    for number, (threshold, model) in enumerate(rows):
        top, start = number * _ROW + 4, place(threshold)
        at_left = start > (_LEFT + right) / 2  # of the bar's beginning, where there is room
        parts += [
            f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(model)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{start - _LEFT:.0f}" height="{_ROW - 6}"/>',
            f'<rect class="over" x="{start:.0f}" y="{top}" width="{right - start:.0f}" '
            f'height="{_ROW - 6}"/>',
            f'<text class="from" x="{start + (-6 if at_left else 6):.0f}" y="{top + 14}" '
            f'text-anchor="{"end" if at_left else "start"}">{threshold:,}</text>',
        ]
    foot = len(rows) * _ROW + 16
    ticks = [10**power for power in range(20) if low <= 10**power < high / 3]
    parts += [
        f'<text x="{place(tick):.0f}" y="{foot}" text-anchor="middle">{tick:,}</text>'
        for tick in ticks[:: 1 + len(ticks) // 5]
    ]
    words = f"{finding.quantity}, up to the limit {finding.largest:,}"
    parts.append(f'<text x="{right:.0f}" y="{foot + 16}" text-anchor="end">{escape(words)}</text>')
    label = f"from how many {finding.quantity} on it overflows, for each model"
    return Markup(
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {foot + 22}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
