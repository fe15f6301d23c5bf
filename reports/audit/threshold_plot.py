"""A plot of a finding's threshold over two dimensions: the rows, and the distance between them."""

from __future__ import annotations

from math import log10

from markupsafe import Markup, escape

from harness.runs.audit.findings import AuditFinding

WIDTH, HEIGHT, LEFT, FOOT = 460, 190, 58, 30
_BITS = {"int8": 7, "int16": 15, "int32": 31}


def draw_threshold(finding: AuditFinding) -> Markup:
    """Draw logarithmic axes: above the line the index overflows. A dot is a model's own shape."""
    holds = 2 ** _BITS.get(finding.element, 31)
    dots = [(holds / reach.threshold, reach) for reach in finding.reaches if reach.threshold]
    at = holds / finding.threshold
    xs = [max(1.0, x) for x, _ in dots] + [max(1.0, at)]
    low_x, high_x = min(xs) / 4, max(xs) * 4
    low_y, high_y = holds / high_x, max(holds / low_x, finding.largest * 2)

    def place(x: float, y: float) -> tuple[float, float]:
        right = (log10(x) - log10(low_x)) / (log10(high_x) - log10(low_x))
        up = (log10(y) - log10(low_y)) / (log10(high_y) - log10(low_y))
        return LEFT + right * (WIDTH - LEFT - 8), HEIGHT - FOOT - up * (HEIGHT - FOOT - 8)

    x1, y1 = place(low_x, holds / low_x)
    x2, y2 = place(high_x, holds / high_x)
    _, limit = place(low_x, finding.largest)
    parts = [
        f'<path class="area" d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}V8H{x1:.0f}Z"/>',
        f'<path class="edge" d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}"/>',
        f'<path class="limit" d="M{LEFT} {limit:.0f}H{WIDTH - 8}"/>',
        f'<text x="{LEFT + 4}" y="{limit - 4:.0f}">limit {finding.largest:,}</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 4}">numbers from one to the next, {low_x:,.0f} to '
        f"{high_x:,.0f}</text>",
        f'<text transform="translate(12 {HEIGHT - FOOT}) rotate(-90)">'
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
    label = f"from how many {finding.quantity} on it wraps, over the distance of two"
    return Markup(
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
