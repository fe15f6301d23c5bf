"""A loop ends one turn too early."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, dotted
from harness.mutate.vocabulary import is_number
from harness.registry.schema import Symptom

TITLE = "Lose a loop's last iteration"
PRS = (11985, 5589)
SYMPTOM = Symptom.SILENT_CORRUPTION


def find(function: FunctionCode) -> Iterator[Change]:
    for node in function.nodes:
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in (
            "range",
            "static_range",
        ):
            if not node.args:
                continue
            stop = node.args[0] if len(node.args) == 1 else node.args[1]
            code = function.code(stop)
            if is_number(stop, 0, 1):
                continue
            step = function.code(node.args[2]) if len(node.args) > 2 else "1"
            if one_more(stop) and step == "1":
                assert isinstance(stop, ast.BinOp)
                left = function.code(stop.left)
                yield function.replaced(stop, left, f"the loop ends before {left}")
                continue
            yield function.replaced(stop, f"{code} - {step}", "the loop's last turn is lost")
        elif isinstance(node, ast.For) and named_list(node.iter):
            code = function.code(node.iter)
            yield function.replaced(node.iter, f"list({code})[:-1]", f"the last of {code} is lost")
        elif isinstance(node, ast.While) and isinstance(node.test, ast.Compare):
            right = node.test.comparators[0]
            if isinstance(node.test.ops[0], ast.Lt | ast.LtE) and len(node.test.ops) == 1:
                code = function.code(right)
                yield function.replaced(right, f"{code} - 1", "the loop's last turn is lost")


def one_more(stop: ast.expr) -> bool:
    return isinstance(stop, ast.BinOp) and isinstance(stop.op, ast.Add) and is_number(stop.right, 1)


def named_list(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)
