"""The table of PTX's instructions is whole, and what has no emitter there is refused by name."""

from __future__ import annotations

import pytest

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
