"""Pages or blocks are counted by rounding down: the last, partly filled one is not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, dotted
from harness.registry.schema import Symptom

TITLE = "Round down where up is right"
PRS = (24587, 31616)
SYMPTOM = Symptom.OUT_OF_BOUNDS
CEILINGS = ("cdiv", "ceil_div", "div_ceil", "ceil_align", "align_up", "ceil_divide")


def find(function: FunctionCode) -> Iterator[Change]:
    for node in function.nodes:
        if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
            name = dotted(node.func).rpartition(".")[2]
            if name in CEILINGS:
                many, size = (bracketed(function, argument) for argument in node.args)
                after = f"{many} // {size}"
                if "align" in name:
                    after = f"{after} * {size}"
                yield function.replaced(node, after, "a partly filled last one is not counted")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            yield from spelled_out(function, node)


def spelled_out(function: FunctionCode, node: ast.BinOp) -> Iterator[Change]:
    """`(n + size - 1) // size` and `(n + 127) // 128`: without what makes them round up."""
    size = ast.unparse(node.right)
    rest = signed(node.left)
    codes = [sign + ast.unparse(term) for sign, term in rest]
    for spare in (["+" + size, "-1"], [f"+{int(size) - 1}"] if size.isdigit() else []):
        if spare and all(code in codes for code in spare):
            for code in spare:
                last = len(codes) - 1 - codes[::-1].index(code)
                del rest[last], codes[last]
            if rest:
                terms = " ".join(f"{sign} {bracketed(function, term)}" for sign, term in rest)
                many = terms.removeprefix("+ ")
                after = f"({many})" if len(rest) > 1 or many.startswith("-") else many
                words = "a partly filled last one is not counted"
                yield function.replaced(node, f"{after} // {function.code(node.right)}", words)
            return


def signed(node: ast.expr, sign: str = "+") -> list[tuple[str, ast.expr]]:
    """The terms of a sum with their signs."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*signed(node.left, sign), *signed(node.right, sign)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return [*signed(node.left, sign), *signed(node.right, "-" if sign == "+" else "+")]
    return [(sign, node)]


def bracketed(function: FunctionCode, node: ast.expr) -> str:
    code = function.code(node)
    return f"({code})" if isinstance(node, ast.BinOp | ast.IfExp | ast.BoolOp) else code
