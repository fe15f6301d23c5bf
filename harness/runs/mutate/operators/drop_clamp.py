"""A value is no longer limited."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_dotted_name
from harness.runs.mutate.sglang_names import is_number

TITLE = "Drop a clamp, or take the wrong side of a minimum"
PRS = (20915, 38877)
SYMPTOM = Symptom.OUT_OF_BOUNDS
MIN_MAX_CALLS = ("min", "max", "tl.minimum", "tl.maximum", "torch.minimum", "torch.maximum")


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if not isinstance(node, ast.Call):
            continue
        name = get_dotted_name(node.func)
        if name in MIN_MAX_CALLS and len(node.args) == 2 and not node.keywords:
            for kept, limit in (node.args, node.args[::-1]):
                if not is_number(kept):
                    code, bound = function.get_text(kept), function.get_text(limit)
                    words = f"{code} is taken, whatever {bound} is"
                    yield function.replace_node(node, code, words)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ("clamp", "clamp_", "clip"):
            value = node.args[0] if name in ("torch.clamp", "tl.clamp") else node.func.value
            yield function.replace_node(
                node, function.get_text(value), "the value is not held in bounds"
            )
