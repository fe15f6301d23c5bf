"""A 64-bit integer becomes a 32-bit integer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_dotted_name

TITLE = "Narrow int64 to int32"
PRS = (35571, 7814)
SYMPTOM = Symptom.OVERFLOW
INT64_NAMES = ("tl.int64", "torch.int64", "torch.long", "np.int64")


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner = node.func.value
            wide = [get_dotted_name(argument) in INT64_NAMES for argument in node.args]
            if node.func.attr == "to" and wide == [True] and not node.keywords:
                words = f"{function.get_text(inner)} keeps its own width"
                yield function.replace_node(node, function.get_text(inner), words)
            elif node.func.attr == "long" and not node.args:
                words = f"{function.get_text(inner)} is int32"
                yield function.replace_node(node, f"{function.get_text(inner)}.int()", words)
            elif get_dotted_name(node.func) == "tl.cast" and wide == [False, True]:
                value = node.args[0]
                words = f"{function.get_text(value)} keeps its own width"
                yield function.replace_node(node, function.get_text(value), words)
        elif (
            isinstance(node, ast.keyword)
            and node.arg == "dtype"
            and get_dotted_name(node.value) in INT64_NAMES
        ):
            library = get_dotted_name(node.value).partition(".")[0]
            yield function.replace_node(
                node.value, f"{library}.int32", "the numbers are 32 bits wide"
            )
