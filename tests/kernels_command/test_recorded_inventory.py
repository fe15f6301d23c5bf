"""The page of the kernels has the numbers of its record."""

from __future__ import annotations

import msgspec

from harness.core import paths
from harness.runs.kernels.values import KernelInventory, KernelKind
from harness.store.record_files import read_record_text

RECORD = paths.project_folder() / "bench" / "recorded" / "kernels-0.5.23.json.xz"


def test_the_page_has_the_numbers_of_the_record() -> None:
    inventory = msgspec.json.decode(read_record_text(RECORD), type=KernelInventory)
    page = (paths.project_folder() / "docs" / "kernels.md").read_text()
    counts = [inventory.count_reached(kind) for kind in (KernelKind.TRITON, KernelKind.CUDA)]
    cells = (inventory.release, *(f"{reached} of {total}" for reached, total in counts))
    assert f"| {' | '.join(cells)} |" in page
