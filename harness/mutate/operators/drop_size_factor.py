"""A buffer's size loses one of its factors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, dotted, last_name
from harness.mutate.vocabulary import SIZES, factors, is_number, sizes
from harness.registry.schema import Symptom

TITLE = "Drop a factor of a buffer's size"
PRS = (27338, 27460, 24587)
SYMPTOM = Symptom.OUT_OF_BOUNDS


def find(function: FunctionCode) -> Iterator[Change]:
    for size in sizes(function):
        for product in (n for n in ast.walk(size) if isinstance(n, ast.BinOp)):
            outer = function.parent(product)
            if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Mult):
                continue
            for factor in factors(product):
                if not is_number(factor, 0, 1):
                    yield without(function, factor)
    for call in function.calls(SIZES):
        if re.search(r"(batch_size|page_size|^len|\.size)$", dotted(call.func)):
            continue
        for argument in call.args:
            if last_name(argument):
                words = f"the size is asked for as if {function.code(argument)} were 1"
                yield function.replaced(argument, "1", words)


def without(function: FunctionCode, factor: ast.expr) -> Change:
    product = function.parent(factor)
    assert isinstance(product, ast.BinOp)
    other = product.left if product.right is factor else product.right
    return function.replaced(
        product, function.code(other), f"the size's factor {function.code(factor)} is dropped"
    )
