"""Threads no longer wait for each other or for a copy, nor streams for each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode, Span
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_dotted_name

TITLE = "Drop a barrier, a fence or a wait"
PRS = (37663, 32467, 11183, 36738, 34076)
SYMPTOM = Symptom.SILENT_CORRUPTION
BARRIER_CALL = re.compile(
    r"^(__syncthreads|__syncwarp|__threadfence\w*|\w*cp_async_wait\w*|sync|arrive_and_wait"
    r"|\w*mbarrier_wait\w*|\w*cluster_wait\w*|\w*bar_sync\w*)$"
)
BARRIER_INSTRUCTION = re.compile(r"bar(rier)?\.(\w+\.)?sync|cp\.async\.wait|membar|fence\.")

FENCE_CALL = re.compile(r"\.(wait_event|wait_stream|synchronize|record_stream|wait)$")


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = get_dotted_name(node.value.func)
            if FENCE_CALL.search(called):
                yield function.replace_node(node, "pass", f"{called} is not called")


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for span in function.statements:
        if is_barrier(function, span):
            code = " ".join(function.get_text(span).rstrip(";").split())
            yield function.replace(span, ";", f"{code} is missing")


def is_barrier(function: CppFunctionCode, span: Span) -> bool:
    """Return whether a statement is one call of a barrier, or one instruction that is a barrier."""
    tokens = function.tokens[span[0] : span[1]]
    if tokens[-1].text != ";":
        return False
    if tokens[0].text == "asm":
        return any(
            token.kind == "string" and BARRIER_INSTRUCTION.search(token.text) for token in tokens
        )
    closing = span[1] - 2
    opening = function.partners.get(closing)
    if opening is None or function.tokens[closing].text != ")" or opening <= span[0]:
        return False
    if any(token.text in ("=", "return") for token in tokens):
        return False
    words = [token.text for token in function.tokens[span[0] : opening] if token.kind == "word"]
    return any(BARRIER_CALL.match(word) for word in words)
