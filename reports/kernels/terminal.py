"""An inventory of kernels on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from harness.runs.kernels.values import KernelInventory
from reports.kernels import view
from reports.shared.tables import ReportTable
from reports.shared.terminal import print_tables, to_plain_text, to_rich_cell

if TYPE_CHECKING:
    from rich.console import Console

_FEW_KERNELS = 12  # a listing of so many names who reaches each


def print_inventory(inventory: KernelInventory, console: Console, show_missing: bool) -> None:
    tables = [view.make_folder_table(inventory), view.make_obstacle_table(inventory)]
    if show_missing:
        tables.append(view.make_missing_table(inventory))
    elif len(inventory.kernels) <= _FEW_KERNELS:
        tables = []
        _print_rows(view.make_kernel_table(inventory), console)
    print_tables(tables, console)
    console.print(to_plain_text(view.describe_inventory(inventory), "bold"), soft_wrap=True)
    if not show_missing and inventory.count_obstacles():
        console.print(to_plain_text("--missing lists each kernel that nothing reaches", "dim"))


def _print_rows(table: ReportTable, console: Console) -> None:
    """Print each row below its name: names and paths are whole in a narrow terminal, too."""
    for name, *cells in ([to_rich_cell(cell) for cell in row] for row in table.rows):
        console.print(name, style="bold", soft_wrap=True)
        for head, cell in zip(table.heads[1:], cells, strict=True):
            if cell.plain:
                console.print(Text.assemble(f"  {head}: ", cell), soft_wrap=True)
    console.print()
