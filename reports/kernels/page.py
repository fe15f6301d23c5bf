"""An inventory of kernels as one HTML file: folders, what keeps kernels out, every kernel."""

from __future__ import annotations

from harness.runs.kernels.values import KernelInventory
from reports.kernels import view
from reports.shared import html_file


def render_page(inventory: KernelInventory, commit: str) -> str:
    values = {"inventory": inventory, "view": view}
    return html_file.render_template(
        "kernels/page.html.j2", values, [f"SGLang {inventory.release}"], [commit]
    )
