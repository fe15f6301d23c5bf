"""An inventory of kernels as one HTML file: folders, what keeps kernels out, every kernel."""

from __future__ import annotations

from harness.runs.kernels.values import KernelInventory
from reports.kernels import view
from reports.shared import html_file
from reports.shared.html_file import PageHead

STYLES = ("shared/page.css", "kernels/page.css")


def render_page(inventory: KernelInventory, commit: str) -> str:
    tables = [view.make_folder_table(inventory), view.make_obstacle_table(inventory)]
    values = {"inventory": inventory, "view": view, "tables": tables}
    return html_file.render_template(
        "kernels/page.html.j2",
        values,
        head=PageHead.make([f"SGLang {inventory.release}"], [commit]),
        styles=STYLES,
    )
