"""A position, a length or a pointer loses an offset that was added to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, last_name
from harness.mutate.vocabulary import LENGTH, POINTER, ROW, SIZE, STRIDE, addends, is_number, named
from harness.registry.schema import Symptom

TITLE = "Drop an added offset or prefix length"
PRS = (25015, 15469, 12582)
SYMPTOM = Symptom.SILENT_CORRUPTION


def find(function: FunctionCode) -> Iterator[Change]:
    for node in function.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            for term, other in terms(node):
                if counts(function, node, term):
                    sign = "added" if isinstance(node.op, ast.Add) else "taken off"
                    words = f"{function.code(term)} is no longer {sign}"
                    yield function.replaced(node, function.code(other), words)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            yield function.replaced(node, "pass", f"{function.code(node.target)} stays as it is")


def terms(node: ast.BinOp) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each term of this one operation that can go, and what stays."""
    yield node.right, node.left
    if isinstance(node.op, ast.Add) and not list(addends(node.left)):
        yield node.left, node.right


def counts(function: FunctionCode, node: ast.BinOp, term: ast.expr) -> bool:
    """Whether a term is an offset: a length, a start, a row's place; no pointer, no list."""
    other = node.left if node.right is term else node.right
    if isinstance(other, ast.Constant) or "tl.arange" in ast.unparse(term):
        return False
    if POINTER.search(last_name(other)) and not isinstance(function.parent(node), ast.BinOp):
        return False  # all that is left of an address: a neighbour's row says it better
    if POINTER.search(last_name(term)) or isinstance(term, ast.List | ast.JoinedStr):
        return False
    if isinstance(other, ast.List | ast.JoinedStr):
        return False
    if isinstance(term, ast.Constant):
        return is_number(term)
    if isinstance(other, ast.BinOp) and "tl.arange" in ast.unparse(other):
        return False  # lanes
    return any(
        named(n, LENGTH) or named(n, ROW) or named(n, SIZE) or named(n, STRIDE)
        for n in ast.walk(term)
    )
