"""The row of a neighbour is read: another request's, another token's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, last_name
from harness.mutate.vocabulary import ROW, accesses
from harness.registry.schema import Symptom

TITLE = "Read or write a neighbour's row"
PRS = (26534, 38231)
SYMPTOM = Symptom.SILENT_CORRUPTION


def find(function: FunctionCode) -> Iterator[Change]:
    for call in accesses(function):
        for node in ast.walk(call.args[0]):
            if isinstance(node, ast.Name) and (
                ROW.search(node.id) or from_program(function, node.id)
            ):
                words = f"the row behind that of {node.id} is taken"
                yield function.replaced(node, f"{node.id} + 1", words)
                break
    if function.kernel:
        return
    rows = loop_names(function)
    for node in function.of(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        index = (
            node.slice.elts[0]
            if isinstance(node.slice, ast.Tuple) and node.slice.elts
            else node.slice
        )
        if isinstance(index, ast.Name | ast.Attribute):
            name = last_name(index)
            if name in rows or (ROW.search(name) and name not in ("i", "j", "b", "r")):
                code = function.code(index)
                words = f"the row before that of {code} is taken"
                yield function.replaced(index, f"{code} - 1", words)


def from_program(function: FunctionCode, name: str) -> bool:
    values = function.assigned.get(name, [])
    return any("tl.program_id" in ast.unparse(value) for value in values)


def loop_names(function: FunctionCode) -> set[str]:
    """The names that count a loop's turns."""
    return {
        name.id
        for node in ast.walk(function.node)
        if isinstance(node, ast.For | ast.comprehension)
        and ast.unparse(node.iter).startswith(("range(", "enumerate("))
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
