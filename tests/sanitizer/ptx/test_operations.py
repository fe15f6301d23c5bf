"""The table of PTX's instructions is whole, and the only one."""

from __future__ import annotations

from pathlib import Path

import pytest
from operation_sets import find_sets

from harness.core import paths
from harness.sanitizer.ptx.instructions import Instruction, UnsupportedPtx
from harness.sanitizer.ptx.lowering import PtxLowering
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.operations import OPERATIONS, find_operation
from harness.sanitizer.ptx.reader import read_kernel

_FOLDERS = [paths.HARNESS_FOLDER / "sanitizer" / name for name in ("ptx", "cuda")]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_row_has_an_emitter_or_says_why_it_has_none(name: str) -> None:
    row = OPERATIONS[name]
    assert (row.emit is None and row.emit_float is None) == bool(row.refusal)


def test_no_other_module_has_a_set_of_instructions() -> None:
    found = {}
    for folder in _FOLDERS:
        for file in folder.glob("*.py"):
            if file.name != "operations.py" and (lines := [*find_sets(file, OPERATIONS)]):
                found[file.name] = lines
    assert not found


def test_a_set_of_instructions_is_found_in_each_form(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('A = ("add", "sub")\nB = "ptx.ld ptx.st".split()\nC = {"mul": 1, "mad": 2}\n'
                    'def find(one): return one.opcode in ("shl", "shr")\n')  # fmt: skip
    assert sorted(find_sets(file, OPERATIONS)) == [1, 2, 3, 4]
    file.write_text('A = ("read", "write")\nif opcode == "add": pass\nB = ("add", "carry")\n')
    assert not [*find_sets(file, OPERATIONS)]


@pytest.mark.parametrize("name", ["brkpt", "wgmma.fence.sync.aligned", "vadd4.u32.u32.u32"])
def test_an_instruction_without_an_emitter_is_refused_by_name(name: str) -> None:
    body = f"{name};" if find_operation(name.partition(".")[0]).no_result else f"{name} %r1, 1;"
    text = f".version 9.0\n.visible .entry k()\n{{\n.reg .b32 %r<2>;\n{body}\nret;\n}}\n"
    module = PtxText(text)
    kernel = module.read_kernel("k")
    with pytest.raises(UnsupportedPtx, match=rf"^{name}"):
        PtxLowering(module, kernel, read_kernel(module, kernel)).lower()


def test_the_operations_of_a_graph_find_the_rows_of_their_instructions() -> None:
    text = ".version 9.0\n.visible .entry k()\n{\n.reg .b32 %r<2>;\nadd.s32 %r1, 1, 2;\nret;\n}\n"
    module = PtxText(text)
    graph = read_kernel(module, module.read_kernel("k"))
    [operation] = [one for one in graph.walk() if Instruction(one).opcode == "add"]
    assert find_operation(operation.name) is OPERATIONS["add"]
