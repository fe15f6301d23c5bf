"""A mask lets more lanes through: one of its conditions, or all of it, is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode
from harness.runs.mutate.function_code import CodeChange, FunctionCode
from harness.runs.mutate.sglang_names import MASK_NAME, find_keyword, has_name, iterate_accesses

TITLE = "Widen a mask, or drop it"
PRS = (39593, 39160)
SYMPTOM = Symptom.OUT_OF_BOUNDS


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            if not function.is_kernel and not is_mask(node):
                continue
            for kept, gone in ((node.left, node.right), (node.right, node.left)):
                words = f"the mask no longer asks for {function.get_text(gone)}"
                yield function.replace_node(node, function.get_text(kept), words)
    for call in iterate_accesses(function):
        mask = find_keyword(call, "mask")
        if mask is not None and not isinstance(mask.value, ast.BinOp):
            yield drop_mask(function, call, mask)


def is_mask(node: ast.BinOp) -> bool:
    return any(
        isinstance(n, ast.Compare | ast.Invert) or has_name(n, MASK_NAME)
        for side in (node.left, node.right)
        for n in ast.walk(side)
    )


def drop_mask(function: FunctionCode, call: ast.Call, mask: ast.keyword) -> CodeChange:
    """Drop the mask, and the value for the masked lanes."""
    items: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    other = find_keyword(call, "other")
    gone = {items.index(k) for k in (mask, other) if k is not None}
    words = f"the access is made whatever {function.get_text(mask.value)} says"
    if other is not None and max(gone) - min(gone) > 1:
        return function.replace_node(mask.value, "True", words)
    return function.remove_items(items, gone, words)


AND = frozenset({"&&"})


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    if not function.is_kernel:
        return
    mutable = set(function.mutable_statements)
    for span, following in zip(function.statements, function.statements[1:], strict=False):
        opening = span[0] + 1
        if span not in mutable or function.tokens[span[0]].text != "if":
            continue
        if function.tokens[opening].text != "(":
            continue  # `if constexpr`: a switch
        condition = (opening + 1, span[1] - 1)
        code = function.get_text(condition)
        left = [function.tokens[n].text for n in range(*following)]
        parts = function.split(condition, AND)
        if following[0] == span[1] and left in (["return", ";"], ["continue", ";"]):
            words = f"threads go on whatever {code} says"
            yield function.replace((span[0], following[1]), ";", words)
        elif len(parts) > 1:
            for part in parts:
                rest = " && ".join(function.get_text(one) for one in parts if one != part)
                words = f"the mask no longer asks for {function.get_text(part)}"
                yield function.replace(condition, rest, words)
        elif any(
            function.tokens[n].text in ("<", "<=") and function.is_comparison(function.tokens[n])
            for n in range(*condition)
        ):
            words = f"the access is made whatever {code} says"
            yield function.replace(condition, "true", words)
