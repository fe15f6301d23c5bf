"""A lock, or its release, is forgotten."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import (
    CodeChange,
    FunctionCode,
    get_dotted_name,
    get_last_name,
)

TITLE = "Drop a lock or its release"
PRS = (27038, 28161, 12111)
SYMPTOM = Symptom.SILENT_CORRUPTION
LOCKING_CALL = re.compile(
    r"(^|\.)(un)?lock$|(^|\.)(inc|dec)_(\w+_)?lock_ref$|_component_lock$|(^|\.)(un)?pin$"
    r"|(^|\.)release_(swa|window)\w*$"
)
COUNTER = re.compile(r"(^|_)(lock_)?ref(_counter|_count)?$")


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.Expr) and is_locking(node.value):
            called = get_dotted_name(node.value.func)  # type: ignore[attr-defined]
            yield function.replace_node(node, "pass", f"{called} is not called")
        elif isinstance(node, ast.Assign) and is_locking(node.value):
            yield function.replace_node(node.value, "None", "nothing is locked")
        elif isinstance(node, ast.AugAssign) and COUNTER.search(get_last_name(node.target)):
            code = function.get_text(node.target)
            yield function.replace_node(node, "pass", f"{code} stays what it was")


def is_locking(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and bool(LOCKING_CALL.search(get_dotted_name(value.func)))
