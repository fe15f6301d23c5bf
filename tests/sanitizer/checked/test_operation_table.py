"""The table of Triton's operations is whole, and no module has a set of them or of PTX's."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import pytest
from operation_sets import find_sets

from harness.core import paths
from harness.sanitizer.cpu.elementwise_ops import ELEMENT_EMITTERS
from harness.sanitizer.cpu.lowering import OPERATION_EMITTERS
from harness.sanitizer.cpu.view_ops import VIEW_EMITTERS
from harness.sanitizer.ir.operations import OPERATIONS
from harness.sanitizer.ptx import operations as ptx_operations

_EMITTERS = {*ELEMENT_EMITTERS, *OPERATION_EMITTERS, *VIEW_EMITTERS}
_FOLDERS = [
    *(paths.HARNESS_FOLDER / "sanitizer" / name for name in ("cpu", "gpu", "ir", "launches")),
    paths.HARNESS_FOLDER / "sanitizer" / "triton",
    paths.HARNESS_FOLDER / "runs" / "audit",
]
_PTX_FOLDERS = [paths.HARNESS_FOLDER / "sanitizer" / name for name in ("ptx", "cuda")]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_row_has_an_emitter_or_says_why_it_has_none(name: str) -> None:
    row = OPERATIONS[name]
    # The operation around a block, or the branch, emits its end.
    needs_none = row.has_no_effect or row.ends_block or name.endswith(".return")
    assert (name not in _EMITTERS and not needs_none) == bool(row.refusal)


def test_each_emitter_has_a_row() -> None:
    assert not _EMITTERS - {*OPERATIONS}


@pytest.mark.parametrize(
    ("names", "folders"), [(OPERATIONS, _FOLDERS), (ptx_operations.OPERATIONS, _PTX_FOLDERS)]
)
def test_no_other_module_keeps_a_set_of_operations(
    names: Container[str], folders: list[Path]
) -> None:
    found = {
        str(file.relative_to(paths.HARNESS_FOLDER)): lines
        for folder in folders
        for file in folder.glob("*.py")
        if file.name != "operations.py"
        if (lines := [*find_sets(file, names)])
    }
    assert not found


def test_a_kept_set_is_found_in_each_form_and_a_table_of_functions_is_none(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('A = ("arith.addi", "arith.subi")\nB = {"tt.load": "read", "tt.store": "w"}\n')
    assert [*find_sets(file, OPERATIONS)] == [1, 2]
    file.write_text('A = {"tt.load": lower_load, "tt.store": lower_store}\n')
    assert not [*find_sets(file, OPERATIONS)]
    file.write_text('A = ("add", "sub")\nB = "ptx.ld ptx.st".split()\nC = {"mul": 1, "mad": 2}\n'
                    'def find(one): return one.opcode in ("shl", "shr")\n')  # fmt: skip
    assert sorted(find_sets(file, ptx_operations.OPERATIONS)) == [1, 2, 3, 4]
    file.write_text('A = ("read", "write")\nif opcode == "add": pass\nB = ("add", "carry")\n')
    assert not [*find_sets(file, ptx_operations.OPERATIONS)]
