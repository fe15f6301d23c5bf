"""An access uses a neighbour's row: another request's, another token's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode
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


CPP_ROW_NAME = re.compile(r"^(row|token|batch|req|seq|item|slot|page|expert)_?(id|idx|index)$")


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    if not function.is_kernel:
        return
    for index, span in function.find_tokens(("blockIdx",)):
        words = {function.tokens[n].text for n in range(*span)}
        if "threadIdx" not in words and "=" in words:
            code = function.get_text((index, index + 3))
            words_of_fault = f"the row behind that of {code} is taken"
            yield function.replace((index, index + 3), f"({code} + 1)", words_of_fault)
    for index, _ in function.find_words(CPP_ROW_NAME):
        before, behind = function.tokens[index - 1].text, function.tokens[index + 1].text
        if behind == "*" or (before == "[" and behind == "]"):
            code = function.tokens[index].text
            words_of_fault = f"the row behind that of {code} is taken"
            yield function.replace((index, index + 1), f"({code} + 1)", words_of_fault)
