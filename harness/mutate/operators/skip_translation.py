"""An index is used where its translation belongs: a token's place in one pool for another's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, last_name
from harness.mutate.vocabulary import POINTER, TABLE, TRANSLATES, addends, loads
from harness.registry.schema import Symptom

TITLE = "Skip an index's translation"
PRS = (24617, 19107, 16267)
SYMPTOM = Symptom.SILENT_CORRUPTION


def find(function: FunctionCode) -> Iterator[Change]:
    for node in function.of(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        outer = function.parent(node)
        launched = isinstance(outer, ast.Call) and outer.func is node
        looked_up = isinstance(node.ctx, ast.Load) and last_name(node.slice) and not launched
        if looked_up and TABLE.search(last_name(node.value)):
            yield skipped(function, node, node.slice)
    for call in function.calls(TRANSLATES):
        if call.args and not isinstance(call.args[0], ast.Starred):
            yield skipped(function, call, call.args[0])
    for call in loads(function):
        terms = list(addends(call.args[0]))
        pointer = last_name(terms[0]) if terms else ""
        if POINTER.search(pointer) and TABLE.search(pointer):
            yield skipped(function, call, terms[-1])


def skipped(function: FunctionCode, node: ast.expr, index: ast.expr) -> Change:
    code = function.code(index)
    return function.replaced(node, code, f"{code} is used as it is, not translated")
