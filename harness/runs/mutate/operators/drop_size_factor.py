"""A buffer's size loses one of its factors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode, Span
from harness.runs.mutate.function_code import (
    CodeChange,
    FunctionCode,
    get_dotted_name,
    get_last_name,
)
from harness.runs.mutate.sglang_names import (
    SIZE_CALL,
    is_number,
    iterate_factors,
    iterate_size_expressions,
)

TITLE = "Drop a factor of a buffer's size"
PRS = (27338, 27460, 24587)
SYMPTOM = Symptom.OUT_OF_BOUNDS


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for size in iterate_size_expressions(function):
        for product in (n for n in ast.walk(size) if isinstance(n, ast.BinOp)):
            outer = function.get_parent(product)
            if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Mult):
                continue
            for factor in iterate_factors(product):
                if not is_number(factor, 0, 1):
                    yield drop_factor(function, factor)
    for call in function.find_calls(SIZE_CALL):
        if re.search(r"(batch_size|page_size|^len|\.size)$", get_dotted_name(call.func)):
            continue
        for argument in call.args:
            if get_last_name(argument):
                words = f"the size is computed as if {function.get_text(argument)} were 1"
                yield function.replace_node(argument, "1", words)


def drop_factor(function: FunctionCode, factor: ast.expr) -> CodeChange:
    product = function.get_parent(factor)
    assert isinstance(product, ast.BinOp)
    other = product.left if product.right is factor else product.right
    return function.replace_node(
        product,
        function.get_text(other),
        f"the size's factor {function.get_text(factor)} is dropped",
    )


SHARED_SIZE_NAME = re.compile(r"(smem|shared|shm)\w*(bytes|size)", re.I)
TIMES = frozenset({"*"})


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for size in iterate_cpp_sizes(function):
        factors = function.split(size, TIMES)
        if len(factors) > 1 and all(first < end for first, end in factors):
            for factor in factors:
                rest = " * ".join(function.get_text(one) for one in factors if one != factor)
                words = f"the factor {function.get_text(factor)} is dropped"
                yield function.replace(size, rest, words)


def iterate_cpp_sizes(function: CppFunctionCode) -> Iterator[Span]:
    """Yield the sizes of arrays in shared memory, and those that a launch asks for."""
    for opening, closing, span in function.iterate_subscripts():
        words = {function.tokens[n].text for n in range(*span)}
        if "__shared__" in words and function.is_declaration(opening, span):
            yield opening + 1, closing
    for index, span in function.find_words(SHARED_SIZE_NAME):
        if function.tokens[index + 1].text == "=" and function.tokens[span[1] - 1].text == ";":
            yield index + 2, span[1] - 1
