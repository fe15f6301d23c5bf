"""A buffer is one element, one row or one page too small."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode
from harness.mutate.vocabulary import PAGE, is_number, named, sizes
from harness.registry.schema import Symptom

TITLE = "Make a buffer one element, one row or one page smaller"
PRS = (24439, 26972, 11871)
SYMPTOM = Symptom.OUT_OF_BOUNDS


def find(function: FunctionCode) -> Iterator[Change]:
    for size in sizes(function):
        code = function.code(size)
        if is_number(size) or isinstance(size, ast.Call | ast.Tuple | ast.IfExp | ast.List):
            continue
        page = next((n for n in ast.walk(size) if named(n, PAGE)), None)
        if isinstance(page, ast.Name | ast.Attribute) and isinstance(size, ast.BinOp):
            words = f"{code} is one page too small"
            yield function.replaced(size, f"{code} - {function.code(page)}", words)
        elif isinstance(size, ast.BinOp) and is_number(size.right, 1):
            if isinstance(size.op, ast.Add):
                left = function.code(size.left)
                yield function.replaced(size, left, f"the spare one behind {left} is not there")
        else:
            yield function.replaced(size, f"{code} - 1", f"{code} is one too small")
