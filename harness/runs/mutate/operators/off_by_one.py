"""A bound, a window or a stride is one too far or one too near."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_last_name
from harness.runs.mutate.sglang_names import (
    LENGTH_NAME,
    MASK_NAME,
    ROW_NAME,
    SIZE_NAME,
    STRIDE_NAME,
    has_name,
    is_number,
    iterate_accesses,
)

TITLE = "Miss a bound, a window or a stride by one"
PRS = (22546, 32087, 26147)
SYMPTOM = Symptom.OUT_OF_BOUNDS
SHIFTED_OPERATORS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.Compare) and is_bound_check(function, node):
            yield shift_comparison(function, node)
        if isinstance(node, ast.Slice):
            yield from iterate_shortened_slices(function, node)
    seen: set[ast.AST] = set()
    for call in iterate_accesses(function):
        for node in iterate_address_nodes(function, call.args[0]):
            if node not in seen and isinstance(node, ast.Name | ast.Attribute):
                seen.add(node)
                if STRIDE_NAME.search(get_last_name(node)) and isinstance(
                    function.get_parent(node), ast.BinOp
                ):
                    code = function.get_text(node)
                    yield function.replace_node(node, f"{code} + 1", f"rows are {code} + 1 apart")


def is_bound_check(function: FunctionCode, node: ast.Compare) -> bool:
    """Return whether a comparison is of a position with a bound, not of a switch or a kind."""
    if len(node.ops) != 1 or type(node.ops[0]) not in SHIFTED_OPERATORS:
        return False
    if function.is_kernel:
        return True
    operands = (node.left, node.comparators[0])
    return any(
        has_name(n, LENGTH_NAME)
        or has_name(n, SIZE_NAME)
        or has_name(n, ROW_NAME)
        or has_name(n, MASK_NAME)
        for side in operands
        for n in ast.walk(side)
    )


def shift_comparison(function: FunctionCode, node: ast.Compare) -> CodeChange:
    left, right = node.left, node.comparators[0]
    sign = SHIFTED_OPERATORS[type(node.ops[0])]
    start, end = function.get_span(left)[1], function.get_span(right)[0]
    between = function.module.text[start:end]
    old = re.search(r"[<>]=?", between)
    assert old is not None
    after = between[: old.start()] + sign + between[old.end() :]
    return CodeChange(start, end, after, f"{old[0]} becomes {sign}: the bound is one off")


def iterate_shortened_slices(function: FunctionCode, node: ast.Slice) -> Iterator[CodeChange]:
    """Yield a slice without its last element."""
    if node.upper is None or is_number(node.upper) or isinstance(node.upper, ast.UnaryOp):
        return
    code = function.get_text(node.upper)
    if isinstance(node.upper, ast.BinOp) and is_number(node.upper.right, 1):
        left = function.get_text(node.upper.left)
        yield function.replace_node(node.upper, left, f"the slice ends at {left}, one off")
    else:
        yield function.replace_node(node.upper, f"{code} - 1", f"the slice ends one before {code}")


def iterate_address_nodes(function: FunctionCode, pointer: ast.expr) -> Iterator[ast.AST]:
    """Yield the nodes of a pointer's computation; a local name stands for its value, once."""
    for node in ast.walk(pointer):
        yield node
        if isinstance(node, ast.Name):
            for value in function.assigned_values.get(node.id, []):
                yield from ast.walk(value)


SHIFTED_SIGNS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for index, span in function.find_tokens(SHIFTED_SIGNS):
        token = function.tokens[index]
        words = {one.text for one in function.tokens[span[0] : span[1]]}
        if not function.is_comparison(token) or "constexpr" in words:
            continue
        if function.is_kernel or any(
            name.search(function.tokens[place].text)
            for place in (index - 1, index + 1)
            for name in (LENGTH_NAME, SIZE_NAME, ROW_NAME, MASK_NAME)
        ):
            sign = SHIFTED_SIGNS[token.text]
            text = f"{token.text} becomes {sign}: the bound is one off"
            yield function.replace((index, index + 1), sign, text)
    for index, _ in function.find_words(STRIDE_NAME) if function.is_kernel else ():
        if "*" in (function.tokens[index - 1].text, function.tokens[index + 1].text):
            code = function.tokens[index].text
            text = f"rows are {code} + 1 apart"
            yield function.replace((index, index + 1), f"({code} + 1)", text)
