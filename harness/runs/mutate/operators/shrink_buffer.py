"""A buffer is one element, one row or one page too small."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode, wrap_in_brackets
from harness.runs.mutate.cpp_code import is_number as is_number_literal
from harness.runs.mutate.function_code import CodeChange, FunctionCode
from harness.runs.mutate.sglang_names import (
    PAGE_SIZE_NAME,
    has_name,
    is_number,
    iterate_size_expressions,
)

TITLE = "Make a buffer one element, one row or one page smaller"
PRS = (24439, 26972, 11871)
SYMPTOM = Symptom.OUT_OF_BOUNDS


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for size in iterate_size_expressions(function):
        code = function.get_text(size)
        if is_number(size) or isinstance(size, ast.Call | ast.Tuple | ast.IfExp | ast.List):
            continue
        page = next((n for n in ast.walk(size) if has_name(n, PAGE_SIZE_NAME)), None)
        if isinstance(page, ast.Name | ast.Attribute) and isinstance(size, ast.BinOp):
            words = f"{code} is one page too small"
            yield function.replace_node(size, f"{code} - {function.get_text(page)}", words)
        elif isinstance(size, ast.BinOp) and is_number(size.right, 1):
            if isinstance(size.op, ast.Add):
                left = function.get_text(size.left)
                yield function.replace_node(size, left, f"the spare one behind {left} is not there")
        else:
            yield function.replace_node(size, f"{code} - 1", f"{code} is one too small")


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for opening, closing, span in function.iterate_subscripts():
        words = {function.tokens[n].text for n in range(*span)}
        code = function.get_text((opening + 1, closing))
        if "__shared__" in words and function.is_declaration(opening, span) and code != "1":
            after = f"{code} - 1" if is_number_literal(code) else f"{wrap_in_brackets(code)} - 1"
            yield function.replace((opening + 1, closing), after, f"{code} is one too small")
