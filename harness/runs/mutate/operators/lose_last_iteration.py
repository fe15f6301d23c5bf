"""A loop ends one turn too early."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode, wrap_in_brackets
from harness.runs.mutate.cpp_code import is_number as is_number_literal
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_dotted_name
from harness.runs.mutate.sglang_names import is_number

TITLE = "Lose a loop's last iteration"
PRS = (11985, 5589)
SYMPTOM = Symptom.SILENT_CORRUPTION


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.Call) and get_dotted_name(node.func).rpartition(".")[2] in (
            "range",
            "static_range",
        ):
            if not node.args:
                continue
            stop = node.args[0] if len(node.args) == 1 else node.args[1]
            code = function.get_text(stop)
            if is_number(stop, 0, 1):
                continue
            step = function.get_text(node.args[2]) if len(node.args) > 2 else "1"
            if is_plus_one(stop) and step == "1":
                assert isinstance(stop, ast.BinOp)
                left = function.get_text(stop.left)
                yield function.replace_node(stop, left, f"the loop ends before {left}")
                continue
            yield function.replace_node(
                stop, f"{code} - {step}", "the loop's last iteration is lost"
            )
        elif isinstance(node, ast.For) and is_plain_name(node.iter):
            code = function.get_text(node.iter)
            yield function.replace_node(
                node.iter, f"list({code})[:-1]", f"the last of {code} is lost"
            )
        elif isinstance(node, ast.While) and isinstance(node.test, ast.Compare):
            right = node.test.comparators[0]
            if isinstance(node.test.ops[0], ast.Lt | ast.LtE) and len(node.test.ops) == 1:
                code = function.get_text(right)
                yield function.replace_node(
                    right, f"{code} - 1", "the loop's last iteration is lost"
                )


def is_plus_one(stop: ast.expr) -> bool:
    return isinstance(stop, ast.BinOp) and isinstance(stop.op, ast.Add) and is_number(stop.right, 1)


def is_plain_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for span in function.mutable_statements:
        kind = function.tokens[span[0]].text
        opening = span[0] + 1
        if kind not in ("for", "while") or function.tokens[opening].text != "(":
            continue
        parts = function.split((opening + 1, function.partners[opening]), frozenset({";"}))
        if len(parts) != (3 if kind == "for" else 1):
            continue
        condition = parts[1] if kind == "for" else parts[0]
        signs = [n for n in range(*condition) if function.tokens[n].text in ("<", "<=")]
        if len(signs) != 1 or not function.is_comparison(function.tokens[signs[0]]):
            continue
        bound = (signs[0] + 1, condition[1])
        code, step = function.get_text(bound), "1"
        increment = function.get_text(parts[2]) if kind == "for" else ""
        if "+=" in increment:
            step = wrap_in_brackets(increment.partition("+=")[2].strip())
        if code not in ("0", "1"):
            after = f"{code if is_number_literal(code) else wrap_in_brackets(code)} - {step}"
            yield function.replace(bound, after, "the loop's last iteration is lost")
