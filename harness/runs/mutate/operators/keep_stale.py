"""Cached values are not cleared."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode
from harness.runs.mutate.function_code import (
    CodeChange,
    FunctionCode,
    get_dotted_name,
    get_last_name,
)
from harness.runs.mutate.sglang_names import is_number

TITLE = "Forget to clear or refresh what is kept"
PRS = (24401, 10892, 37165)
SYMPTOM = Symptom.SILENT_CORRUPTION
CLEARING_CALL = re.compile(r"\.(clear|zero_|fill_|cache_clear|reset|invalidate)$")
REFRESHING_CALL = re.compile(r"\.copy_$")


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = get_dotted_name(node.value.func)
            if CLEARING_CALL.search(called):
                yield function.replace_node(node, "pass", "the earlier content stays")
            elif REFRESHING_CALL.search(called):
                yield function.replace_node(node, "pass", "the earlier values stay")
        elif isinstance(node, ast.Assign) and is_emptying(node):
            code = function.get_text(node.targets[0])
            yield function.replace_node(node, "pass", f"{code} keeps what it had")


def is_emptying(node: ast.Assign) -> bool:
    """Return whether an assignment clears a value or its tail: `self.cache = None`, `b[n:] = 0`."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Subscript):
        return isinstance(target.slice, ast.Slice) and (
            is_number(value, 0) or is_empty_value(value)
        )
    return (
        isinstance(target, ast.Attribute) and is_empty_value(value) and bool(get_last_name(target))
    )


def is_empty_value(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return value.value is None
    return isinstance(value, ast.Dict | ast.List) and not ast.unparse(value).strip("[]{}")


CPP_CLEARING_CALL = re.compile(r"^(clear|reset|zero|fill)\w*$|^cudaMemset(Async)?$")
EMPTY_VALUES = ("0", "0.0f", "0.f", "0u", "{}", "-1")


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for span in function.mutable_statements:
        texts = [function.tokens[n].text for n in range(*span)]
        if texts[-1] != ";":
            continue
        is_call = CPP_CLEARING_CALL.match(texts[0]) and texts[1:2] == ["("]
        if is_call:
            yield function.replace(span, ";", "the earlier content stays")
        elif "=" in texts and "[" in texts[: texts.index("=")]:
            sign = texts.index("=")
            is_declared = texts[0] in ("__shared__", "const", "static", "constexpr")
            if "".join(texts[sign + 1 : -1]) in EMPTY_VALUES and not is_declared:
                code = function.get_text((span[0], span[0] + sign))
                yield function.replace(span, ";", f"{code} keeps what it had")
