"""A 64-bit integer becomes a 32-bit integer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode
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


INT64_TYPES = {
    "int64_t": "int32_t",
    "uint64_t": "uint32_t",
    "size_t": "uint32_t",
    "ptrdiff_t": "int32_t",
}


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for index, span in function.find_tokens(INT64_TYPES):
        first = function.find_name_start(index)
        if is_value_type(function, first, index, span[0]):
            wide = function.tokens[index].text
            words = f"the value is {INT64_TYPES[wide]} where {wide} is needed"
            yield function.replace((first, index + 1), INT64_TYPES[wide], words)


def is_value_type(function: CppFunctionCode, first: int, index: int, start: int) -> bool:
    """Return whether a type is that of a cast or a variable, not of a pointer or a template."""
    tokens = function.tokens
    before, behind = tokens[first - 1].text, tokens[index + 1]
    if before == "<":
        return tokens[first - 2].text == "static_cast" and behind.text == ">"
    if behind.text in ("(", "{"):
        return True
    if before == "(" and behind.text == ")":
        return tokens[first - 2].text not in ("sizeof", "alignof")
    declares = first == start or before in ("const", "constexpr", "static", "(")
    return declares and behind.kind == "word"
