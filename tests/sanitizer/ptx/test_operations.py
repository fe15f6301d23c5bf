"""The table of PTX's instructions is whole, and the only one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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


def list_words(node: ast.AST) -> list[str]:
    """List the strings of a collection, or the words of a string that is split."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        words = node.elts
    elif isinstance(node, ast.Dict):
        words = [key for key in node.keys if key is not None]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        text = node.func.value
        is_split = node.func.attr == "split" and isinstance(text, ast.Constant)
        return str(text.value).split() if is_split and isinstance(text, ast.Constant) else []
    else:
        return []
    found = [word.value for word in words if isinstance(word, ast.Constant)]
    return [word for word in found if isinstance(word, str)] if len(found) == len(words) else []


def list_collections(tree: ast.Module) -> Iterator[ast.expr]:
    """List what a module keeps, and what it compares an instruction's name with."""
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            yield from (one for one in ast.walk(statement.value) if isinstance(one, ast.expr))
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(("opcode", "name")):
            yield from node.comparators


def find_sets_of_instructions(file: Path) -> Iterator[int]:
    """Find the lines with a collection of two or more instructions and nothing else.

    The verbs of an atomic update and other modifiers have names of instructions, too.
    """
    for node in list_collections(ast.parse(file.read_text())):
        words = [word.removeprefix("ptx.") for word in list_words(node)]
        if len(words) > 1 and all(word in OPERATIONS for word in words):
            yield node.lineno


def test_no_other_module_has_a_set_of_instructions() -> None:
    found = {}
    for folder in _FOLDERS:
        for file in folder.glob("*.py"):
            if file.name != "operations.py" and (lines := [*find_sets_of_instructions(file)]):
                found[file.name] = lines
    assert not found


def test_a_set_of_instructions_is_found_in_each_form(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('A = ("add", "sub")\nB = "ptx.ld ptx.st".split()\nC = {"mul": 1, "mad": 2}\n'
                    'def find(one): return one.opcode in ("shl", "shr")\n')  # fmt: skip
    assert sorted(find_sets_of_instructions(file)) == [1, 2, 3, 4]
    file.write_text('A = ("read", "write")\nif opcode == "add": pass\nB = ("add", "carry")\n')
    assert not [*find_sets_of_instructions(file)]


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
