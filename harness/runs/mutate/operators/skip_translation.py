"""An index replaces its translation: a token's place in one pool for its place in another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode, wrap_in_brackets
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_last_name
from harness.runs.mutate.sglang_names import (
    POINTER_NAME,
    TABLE_NAME,
    TRANSLATION_CALL,
    iterate_addends,
    iterate_loads,
)

TITLE = "Skip an index's translation"
PRS = (24617, 19107, 16267)
SYMPTOM = Symptom.SILENT_CORRUPTION


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.find_nodes(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        outer = function.get_parent(node)
        launched = isinstance(outer, ast.Call) and outer.func is node
        looked_up = isinstance(node.ctx, ast.Load) and get_last_name(node.slice) and not launched
        if looked_up and TABLE_NAME.search(get_last_name(node.value)):
            yield use_untranslated(function, node, node.slice)
    for call in function.find_calls(TRANSLATION_CALL):
        if call.args and not isinstance(call.args[0], ast.Starred):
            yield use_untranslated(function, call, call.args[0])
    for call in iterate_loads(function):
        terms = list(iterate_addends(call.args[0]))
        pointer = get_last_name(terms[0]) if terms else ""
        if POINTER_NAME.search(pointer) and TABLE_NAME.search(pointer):
            yield use_untranslated(function, call, terms[-1])


def use_untranslated(function: FunctionCode, node: ast.expr, index: ast.expr) -> CodeChange:
    code = function.get_text(index)
    return function.replace_node(node, code, f"{code} is used as it is, not translated")


CPP_TABLE_NAME = re.compile(r"(indices|ids|locs?|slots?|page_idx)_?$", re.I)
ASSIGNMENTS = ("=", "+=", "-=", "|=", "++", "--")


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for opening, closing, span in function.iterate_subscripts():
        name = function.get_last_word(opening)
        if not (TABLE_NAME.search(name) or CPP_TABLE_NAME.search(name)):
            continue
        start = max(function.find_expression_start(opening), span[0])
        is_value = function.tokens[start - 1].text not in ("&", "const", "auto", ">")
        is_read = function.tokens[closing + 1].text not in (*ASSIGNMENTS, "[")
        if is_value and is_read and not function.is_declaration(opening, span):
            code = function.get_text((opening + 1, closing))
            words = f"{code} is used as it is, not translated"
            yield function.replace((start, closing + 1), wrap_in_brackets(code), words)
