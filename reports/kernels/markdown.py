"""An inventory of kernels as Markdown, for the summary of a job."""

from __future__ import annotations

from harness.runs.kernels.values import KernelInventory
from reports.kernels import view
from reports.shared import markdown


def render_markdown(inventory: KernelInventory, show_missing: bool) -> str:
    tables = [view.make_folder_table(inventory), view.make_obstacle_table(inventory)]
    if show_missing:
        tables.append(view.make_missing_table(inventory))
    parts = [f"## {markdown.escape_text(view.describe_inventory(inventory))}"]
    parts += [markdown.render_report_table(table) for table in tables]
    return markdown.join_parts(parts)
