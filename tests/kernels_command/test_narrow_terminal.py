"""A list of a few kernels on a terminal of 80 columns."""

from __future__ import annotations

import io

from rich.console import Console

from harness.runs.kernels.values import KernelInventory, KernelKind, ListedKernel
from reports.kernels.terminal import print_inventory

NAME = "fused_moe_kernel_of_a_very_long_name_that_no_column_of_a_table_holds"
FILE = "sglang/srt/layers/moe/fused_moe_triton/a_module_of_a_long_name_as_well.py"


def test_names_and_paths_are_whole() -> None:
    out = io.StringIO()
    kernel = ListedKernel(KernelKind.TRITON, NAME, FILE, 12, reached_by=["suite some_guard"])
    print_inventory(KernelInventory("0.5.23", [kernel]), Console(file=out, width=80), False)
    lines = out.getvalue().splitlines()
    assert lines[:2] == [NAME, f"  place: {FILE}:12"]
    assert any("some_guard" in line for line in lines[2:])
