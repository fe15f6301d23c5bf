"""What is held is never given back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_dotted_name

TITLE = "Forget to free"
PRS = (12693, 16067, 20182)
SYMPTOM = Symptom.CRASH
FREEING_CALL = re.compile(r"(^|[._])(free|release|discard)(_(?!group)\w+)?$")


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in list_freeing_statements(function):
        called = get_dotted_name(node.value.func)  # type: ignore[attr-defined]
        yield function.replace_node(node, "pass", f"{called} is not called")


def list_freeing_statements(function: FunctionCode) -> list[ast.Expr]:
    """List the statements that are one call which frees; none for locks, which have their own."""
    return [
        node
        for node in function.mutable_nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and FREEING_CALL.search(get_dotted_name(node.value.func))
        and not get_dotted_name(node.value.func).endswith("lock")
    ]
