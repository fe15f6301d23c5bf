"""What was kept from before is not cleared."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, dotted, last_name
from harness.mutate.vocabulary import is_number
from harness.registry.schema import Symptom

TITLE = "Forget to clear or refresh what is kept"
PRS = (24401, 10892, 37165)
SYMPTOM = Symptom.SILENT_CORRUPTION
CLEARS = re.compile(r"\.(clear|zero_|fill_|cache_clear|reset|invalidate)$")
REFRESHES = re.compile(r"\.copy_$")


def find(function: FunctionCode) -> Iterator[Change]:
    for node in function.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = dotted(node.value.func)
            if CLEARS.search(called):
                yield function.replaced(node, "pass", "what is there from before stays")
            elif REFRESHES.search(called):
                yield function.replaced(node, "pass", "the values of the time before stay")
        elif isinstance(node, ast.Assign) and empties(node):
            code = function.code(node.targets[0])
            yield function.replaced(node, "pass", f"{code} keeps what it had")


def empties(node: ast.Assign) -> bool:
    """`self.cache = None`, `buffer[n:] = 0`: something held is emptied, or its tail is."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Subscript):
        return isinstance(target.slice, ast.Slice) and (is_number(value, 0) or nothing(value))
    return isinstance(target, ast.Attribute) and nothing(value) and bool(last_name(target))


def nothing(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return value.value is None
    return isinstance(value, ast.Dict | ast.List) and not ast.unparse(value).strip("[]{}")
