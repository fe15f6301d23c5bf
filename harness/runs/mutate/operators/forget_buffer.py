"""One buffer of several is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import CodeChange, FunctionCode

TITLE = "Leave one buffer of several out"
PRS = (29973, 31934)
SYMPTOM = Symptom.SILENT_CORRUPTION
BUFFERS = re.compile(
    r"buf|pool|cache|state|conv|component|alloc|layer|segment|page|indices|req|slot"
)


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.For) and is_of_buffers(node.iter):
            code = function.get_text(node.iter)
            yield function.replace_node(
                node.iter, f"list({code})[:-1]", f"the last of {code} is left out"
            )


def is_of_buffers(iterated: ast.expr) -> bool:
    """Return whether a loop goes through buffers or what has them, and not a range."""
    if isinstance(iterated, ast.Tuple | ast.List):
        return len(iterated.elts) > 1
    named = isinstance(iterated, ast.Name | ast.Attribute)
    return named and bool(BUFFERS.search(ast.unparse(iterated)))
