"""A position, a length or a pointer loses an added offset."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode, Span
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_last_name
from harness.runs.mutate.sglang_names import (
    LENGTH_NAME,
    POINTER_NAME,
    ROW_NAME,
    SIZE_NAME,
    STRIDE_NAME,
    has_name,
    is_number,
    iterate_addends,
)

TITLE = "Drop an added offset or prefix length"
PRS = (25015, 15469, 12582)
SYMPTOM = Symptom.SILENT_CORRUPTION


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            for term, other in iterate_removable_terms(node):
                if is_offset_term(function, node, term):
                    sign = "added" if isinstance(node.op, ast.Add) else "taken off"
                    words = f"{function.get_text(term)} is no longer {sign}"
                    yield function.replace_node(node, function.get_text(other), words)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            yield function.replace_node(
                node, "pass", f"{function.get_text(node.target)} stays as it is"
            )


def iterate_removable_terms(node: ast.BinOp) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each removable term of this one operation, and the remaining one."""
    yield node.right, node.left
    if isinstance(node.op, ast.Add) and not list(iterate_addends(node.left)):
        yield node.left, node.right


def is_offset_term(function: FunctionCode, node: ast.BinOp, term: ast.expr) -> bool:
    """Return whether a term is an offset: a length, a start, a row; no pointer, no list."""
    other = node.left if node.right is term else node.right
    if isinstance(other, ast.Constant) or "tl.arange" in ast.unparse(term):
        return False
    if POINTER_NAME.search(get_last_name(other)) and not isinstance(
        function.get_parent(node), ast.BinOp
    ):
        return False  # only the pointer would remain; `neighbours_row` is the better fault
    if POINTER_NAME.search(get_last_name(term)) or isinstance(term, ast.List | ast.JoinedStr):
        return False
    if isinstance(other, ast.List | ast.JoinedStr):
        return False
    if isinstance(term, ast.Constant):
        return is_number(term)
    if isinstance(other, ast.BinOp) and "tl.arange" in ast.unparse(other):
        return False  # lanes
    return any(
        has_name(n, LENGTH_NAME)
        or has_name(n, ROW_NAME)
        or has_name(n, SIZE_NAME)
        or has_name(n, STRIDE_NAME)
        for n in ast.walk(term)
    )


PLUS = frozenset({"+"})


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for opening, closing, span in function.iterate_subscripts():
        if not function.is_declaration(opening, span):
            yield from drop_terms(function, (opening + 1, closing))
    for span in function.mutable_statements:
        signs = [n for n in range(*span) if function.tokens[n].text in ("=", "+=", "-=")]
        if not signs or function.tokens[span[1] - 1].text != ";":
            continue
        value = (signs[0] + 1, span[1] - 1)
        if function.tokens[signs[0]].text == "=":
            yield from drop_terms(function, value)
        elif is_cpp_offset(function, value):
            target = function.get_text((span[0], signs[0]))
            yield function.replace(span, ";", f"{target} stays as it is")


def drop_terms(function: CppFunctionCode, value: Span) -> Iterator[CodeChange]:
    """Drop each term of a sum that is an offset; the lanes of a thread stay."""
    terms = function.split(value, PLUS)
    if len(terms) < 2 or any(first == end for first, end in terms):
        return
    for term in terms:
        if is_cpp_offset(function, term):
            rest = " + ".join(function.get_text(other) for other in terms if other != term)
            words = f"{function.get_text(term)} is no longer added"
            yield function.replace(value, rest, words)


def is_cpp_offset(function: CppFunctionCode, term: Span) -> bool:
    words = [function.tokens[n].text for n in range(*term) if function.tokens[n].kind == "word"]
    if "threadIdx" in words:
        return False
    names = (LENGTH_NAME, ROW_NAME, SIZE_NAME, STRIDE_NAME)
    return any(name.search(word) for name in names for word in words)
