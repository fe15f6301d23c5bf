"""A mask lets more through than it should: a condition of it, or all of it, is gone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode
from harness.mutate.vocabulary import MASK, accesses, keyword, named
from harness.registry.schema import Symptom

TITLE = "Widen a mask, or drop it"
PRS = (39593, 39160)
SYMPTOM = Symptom.OUT_OF_BOUNDS


def find(function: FunctionCode) -> Iterator[Change]:
    for node in function.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            if not function.kernel and not is_mask(node):
                continue
            for kept, gone in ((node.left, node.right), (node.right, node.left)):
                words = f"the mask no longer asks for {function.code(gone)}"
                yield function.replaced(node, function.code(kept), words)
    for call in accesses(function):
        mask = keyword(call, "mask")
        if mask is not None and not isinstance(mask.value, ast.BinOp):
            yield unmasked(function, call, mask)


def is_mask(node: ast.BinOp) -> bool:
    return any(
        isinstance(n, ast.Compare | ast.Invert) or named(n, MASK)
        for side in (node.left, node.right)
        for n in ast.walk(side)
    )


def unmasked(function: FunctionCode, call: ast.Call, mask: ast.keyword) -> Change:
    """Without the mask, and without what stood for the lanes that it left out."""
    items: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    other = keyword(call, "other")
    gone = {items.index(k) for k in (mask, other) if k is not None}
    words = f"the access is made whatever {function.code(mask.value)} says"
    if other is not None and max(gone) - min(gone) > 1:
        return function.replaced(mask.value, "True", words)
    return function.without(items, gone, words)
