"""A bound, a window or a stride is one too far or one too near."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, last_name
from harness.mutate.vocabulary import LENGTH, MASK, ROW, SIZE, STRIDE, accesses, is_number, named
from harness.registry.schema import Symptom

TITLE = "Miss a bound, a window or a stride by one"
PRS = (22546, 32087, 26147)
SYMPTOM = Symptom.OUT_OF_BOUNDS
NEXT = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


def find(function: FunctionCode) -> Iterator[Change]:
    for node in function.nodes:
        if isinstance(node, ast.Compare) and bounds(function, node):
            yield comparison(function, node)
        if isinstance(node, ast.Slice):
            yield from ends(function, node)
    seen: set[ast.AST] = set()
    for call in accesses(function):
        for node in reachable(function, call.args[0]):
            if node not in seen and isinstance(node, ast.Name | ast.Attribute):
                seen.add(node)
                if STRIDE.search(last_name(node)) and isinstance(function.parent(node), ast.BinOp):
                    code = function.code(node)
                    yield function.replaced(node, f"{code} + 1", f"rows are {code} + 1 apart")


def bounds(function: FunctionCode, node: ast.Compare) -> bool:
    """Whether a comparison is of a position with a bound, and not of a switch or a kind."""
    if len(node.ops) != 1 or type(node.ops[0]) not in NEXT:
        return False
    if function.kernel:
        return True
    told = (node.left, node.comparators[0])
    return any(
        named(n, LENGTH) or named(n, SIZE) or named(n, ROW) or named(n, MASK)
        for side in told
        for n in ast.walk(side)
    )


def comparison(function: FunctionCode, node: ast.Compare) -> Change:
    left, right = node.left, node.comparators[0]
    sign = NEXT[type(node.ops[0])]
    start, end = function.span(left)[1], function.span(right)[0]
    between = function.module.text[start:end]
    old = re.search(r"[<>]=?", between)
    assert old is not None
    after = between[: old.start()] + sign + between[old.end() :]
    return Change(start, end, after, f"{old[0]} becomes {sign}: the bound is one off")


def ends(function: FunctionCode, node: ast.Slice) -> Iterator[Change]:
    """A slice one short at its end: it loses its last."""
    if node.upper is None or is_number(node.upper) or isinstance(node.upper, ast.UnaryOp):
        return
    code = function.code(node.upper)
    if isinstance(node.upper, ast.BinOp) and is_number(node.upper.right, 1):
        left = function.code(node.upper.left)
        yield function.replaced(node.upper, left, f"the slice ends at {left}, one off")
    else:
        yield function.replaced(node.upper, f"{code} - 1", f"the slice ends one before {code}")


def reachable(function: FunctionCode, pointer: ast.expr) -> Iterator[ast.AST]:
    """What a pointer is computed from, with the local names in it looked up once."""
    for node in ast.walk(pointer):
        yield node
        if isinstance(node, ast.Name):
            for value in function.assigned.get(node.id, []):
                yield from ast.walk(value)
