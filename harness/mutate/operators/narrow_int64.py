"""What was made 64 bits wide is left at 32."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, dotted
from harness.registry.schema import Symptom

TITLE = "Narrow int64 to int32"
PRS = (35571, 7814)
SYMPTOM = Symptom.OVERFLOW
WIDE = ("tl.int64", "torch.int64", "torch.long", "np.int64")


def find(function: FunctionCode) -> Iterator[Change]:
    for node in function.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner = node.func.value
            wide = [dotted(argument) in WIDE for argument in node.args]
            if node.func.attr == "to" and wide == [True] and not node.keywords:
                words = f"{function.code(inner)} keeps its own width"
                yield function.replaced(node, function.code(inner), words)
            elif node.func.attr == "long" and not node.args:
                words = f"{function.code(inner)} is int32"
                yield function.replaced(node, f"{function.code(inner)}.int()", words)
            elif dotted(node.func) == "tl.cast" and wide == [False, True]:
                value = node.args[0]
                words = f"{function.code(value)} keeps its own width"
                yield function.replaced(node, function.code(value), words)
        elif isinstance(node, ast.keyword) and node.arg == "dtype" and dotted(node.value) in WIDE:
            library = dotted(node.value).partition(".")[0]
            yield function.replaced(node.value, f"{library}.int32", "the numbers are 32 bits wide")
