"""Something is given back before the last statement that uses it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_dotted_name
from harness.runs.mutate.operators.drop_free import list_freeing_statements

TITLE = "Free too early"
PRS = (35049, 34076)
SYMPTOM = Symptom.SILENT_CORRUPTION
ONE_STATEMENT = (ast.Expr, ast.Assign, ast.AugAssign)


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    frees = {id(node) for node in list_freeing_statements(function)}
    for before, node in find_neighbours(function):
        if id(node) in frees and id(before) not in frees and shares_name(before, node):
            start, _ = function.module.get_span(before)
            _, end = function.module.get_span(node)
            called = get_dotted_name(node.value.func)  # type: ignore[attr-defined]
            code = f"{function.get_text(node)}; {function.get_text(before)}"
            yield CodeChange(start, end, code, f"{called} is called before its last use")


def find_neighbours(function: FunctionCode) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """Yield each simple statement with the one behind it in the same block."""
    for owner in ast.walk(function.node):
        for block in (getattr(owner, "body", None), getattr(owner, "orelse", None)):
            if isinstance(block, list):
                for before, node in itertools.pairwise(block):
                    if isinstance(before, ONE_STATEMENT) and isinstance(node, ast.Expr):
                        yield before, node


def shares_name(before: ast.stmt, node: ast.stmt) -> bool:
    """Return whether a statement reads what the other one frees, and does not make it."""
    freed = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    made = {
        child.id
        for child in ast.walk(before)
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
    }
    read = {child.id for child in ast.walk(before) if isinstance(child, ast.Name)}
    return bool(freed & read) and not freed & made
