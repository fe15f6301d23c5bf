"""A value is no longer held within its limit."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, dotted
from harness.mutate.vocabulary import is_number
from harness.registry.schema import Symptom

TITLE = "Drop a clamp, or take the wrong side of a minimum"
PRS = (20915, 38877)
SYMPTOM = Symptom.OUT_OF_BOUNDS
EITHER = ("min", "max", "tl.minimum", "tl.maximum", "torch.minimum", "torch.maximum")


def find(function: FunctionCode) -> Iterator[Change]:
    for node in function.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in EITHER and len(node.args) == 2 and not node.keywords:
            for kept, limit in (node.args, node.args[::-1]):
                if not is_number(kept):
                    words = f"{function.code(kept)} is taken, whatever {function.code(limit)} is"
                    yield function.replaced(node, function.code(kept), words)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ("clamp", "clamp_", "clip"):
            value = node.args[0] if name in ("torch.clamp", "tl.clamp") else node.func.value
            yield function.replaced(node, function.code(value), "the value is not held in bounds")
