"""An audit as one HTML file: each finding with its code, its arithmetic and a plot."""

from __future__ import annotations

from math import log10

from markupsafe import Markup, escape

from harness.runs.audit.findings import AuditFinding
from harness.runs.audit.release_audit import ReleaseAudit
from reports.audit import view
from reports.shared import html_file
from reports.shared.html_file import PageHead

STYLES = ("shared/bars.css", "audit/page.css")
MAX_FINDINGS = 400  # findings with their code
_WIDTH, _HEIGHT, _LEFT, _FOOT = 460, 190, 58, 30  # of a plot
_BITS = {"int8": 7, "int16": 15, "int32": 31}


def render_page(audit: ReleaseAudit, commit: str) -> str:
    values = {"found": audit, "view": view, "plot": _draw_threshold, "most": MAX_FINDINGS}
    return html_file.render_template(
        "audit/page.html.j2",
        values,
        head=PageHead.make([f"SGLang {audit.release}"], [commit]),
        styles=STYLES,
    )


def _draw_threshold(finding: AuditFinding) -> Markup:
    """Plot a threshold over the rows and their distance, on logarithmic axes.

    Above the line the index overflows. A dot is a model's own shape.
    """
    holds = 2 ** _BITS.get(finding.element, 31)
    dots = [(holds / reach.threshold, reach) for reach in finding.reaches if reach.threshold]
    at = holds / finding.threshold
    xs = [max(1.0, x) for x, _ in dots] + [max(1.0, at)]
    low_x, high_x = min(xs) / 4, max(xs) * 4
    low_y, high_y = holds / high_x, max(holds / low_x, finding.largest * 2)

    def place(x: float, y: float) -> tuple[float, float]:
        right = (log10(x) - log10(low_x)) / (log10(high_x) - log10(low_x))
        up = (log10(y) - log10(low_y)) / (log10(high_y) - log10(low_y))
        return _LEFT + right * (_WIDTH - _LEFT - 8), _HEIGHT - _FOOT - up * (_HEIGHT - _FOOT - 8)

    x1, y1 = place(low_x, holds / low_x)
    x2, y2 = place(high_x, holds / high_x)
    _, limit = place(low_x, finding.largest)
    parts = [
        f'<path class="area" d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}V8H{x1:.0f}Z"/>',
        f'<path class="edge" d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}"/>',
        f'<path class="limit" d="M{_LEFT} {limit:.0f}H{_WIDTH - 8}"/>',
        f'<text x="{_LEFT + 4}" y="{limit - 4:.0f}">limit {finding.largest:,}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">numbers from one to the next, {low_x:,.0f} to '
        f"{high_x:,.0f}</text>",
        f'<text transform="translate(12 {_HEIGHT - _FOOT}) rotate(-90)">'
        f"{escape(finding.quantity)}</text>",
    ]
    seen: set[int] = set()
    for x, reach in dots:
        cx, cy = place(max(1.0, x), reach.threshold)
        parts.append(f'<circle cx="{cx:.0f}" cy="{cy:.0f}" r="4"><title>{escape(reach.model)}: '
                     f"from {reach.threshold:,} on</title></circle>")  # fmt: skip
        if reach.threshold not in seen:
            seen.add(reach.threshold)
            parts.append(f'<text class="dot" x="{cx + 6:.0f}" y="{cy - 4:.0f}">'
                         f"{reach.threshold:,}</text>")  # fmt: skip
    label = f"from how many {finding.quantity} on it overflows, over the distance of two"
    return Markup(
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
