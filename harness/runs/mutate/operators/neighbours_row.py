"""An access uses a neighbour's row: another request's, another token's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_last_name
from harness.runs.mutate.sglang_names import ROW_NAME, iterate_accesses

TITLE = "Read or write a neighbour's row"
PRS = (26534, 38231)
SYMPTOM = Symptom.SILENT_CORRUPTION


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for call in iterate_accesses(function):
        for node in ast.walk(call.args[0]):
            if isinstance(node, ast.Name) and (
                ROW_NAME.search(node.id) or is_program_id(function, node.id)
            ):
                words = f"the row behind that of {node.id} is taken"
                yield function.replace_node(node, f"{node.id} + 1", words)
                break
    if function.is_kernel:
        return
    rows = collect_loop_names(function)
    for node in function.find_nodes(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        index = (
            node.slice.elts[0]
            if isinstance(node.slice, ast.Tuple) and node.slice.elts
            else node.slice
        )
        if isinstance(index, ast.Name | ast.Attribute):
            name = get_last_name(index)
            if name in rows or (ROW_NAME.search(name) and name not in ("i", "j", "b", "r")):
                code = function.get_text(index)
                words = f"the row before that of {code} is taken"
                yield function.replace_node(index, f"{code} - 1", words)


def is_program_id(function: FunctionCode, name: str) -> bool:
    values = function.assigned_values.get(name, [])
    return any("tl.program_id" in ast.unparse(value) for value in values)


def collect_loop_names(function: FunctionCode) -> set[str]:
    """Collect the names of loop counters."""
    return {
        name.id
        for node in ast.walk(function.node)
        if isinstance(node, ast.For | ast.comprehension)
        and ast.unparse(node.iter).startswith(("range(", "enumerate("))
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
