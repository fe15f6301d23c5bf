"""The number of pages or blocks is rounded down: the last, partly filled one is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode, wrap_in_brackets
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_dotted_name

TITLE = "Round down where up is right"
PRS = (24587, 31616)
SYMPTOM = Symptom.OUT_OF_BOUNDS
CEILING_CALLS = ("cdiv", "ceil_div", "div_ceil", "ceil_align", "align_up", "ceil_divide")


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
            name = get_dotted_name(node.func).rpartition(".")[2]
            if name in CEILING_CALLS:
                many, size = (add_brackets(function, argument) for argument in node.args)
                after = f"{many} // {size}"
                if "align" in name:
                    after = f"{after} * {size}"
                yield function.replace_node(node, after, "a partly filled last one is not counted")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            yield from iterate_rounded_down_quotients(function, node)


def iterate_rounded_down_quotients(function: FunctionCode, node: ast.BinOp) -> Iterator[CodeChange]:
    """Yield `n // size` for `(n + size - 1) // size`, and `n // 128` for `(n + 127) // 128`."""
    size = ast.unparse(node.right)
    rest = list_signed_terms(node.left)
    codes = [sign + ast.unparse(term) for sign, term in rest]
    for spare in (["+" + size, "-1"], [f"+{int(size) - 1}"] if size.isdigit() else []):
        if spare and all(code in codes for code in spare):
            for code in spare:
                last = len(codes) - 1 - codes[::-1].index(code)
                del rest[last], codes[last]
            if rest:
                terms = " ".join(f"{sign} {add_brackets(function, term)}" for sign, term in rest)
                many = terms.removeprefix("+ ")
                after = f"({many})" if len(rest) > 1 or many.startswith("-") else many
                words = "a partly filled last one is not counted"
                yield function.replace_node(
                    node, f"{after} // {function.get_text(node.right)}", words
                )
            return


def list_signed_terms(node: ast.expr, sign: str = "+") -> list[tuple[str, ast.expr]]:
    """List the terms of a sum with their signs."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*list_signed_terms(node.left, sign), *list_signed_terms(node.right, sign)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return [
            *list_signed_terms(node.left, sign),
            *list_signed_terms(node.right, "-" if sign == "+" else "+"),
        ]
    return [(sign, node)]


def add_brackets(function: FunctionCode, node: ast.expr) -> str:
    code = function.get_text(node)
    return f"({code})" if isinstance(node, ast.BinOp | ast.IfExp | ast.BoolOp) else code


CPP_ROUND_UP = ("div_ceil", "ceil_div", "ceildiv", "cdiv", "CEIL_DIV", "DIVUP")


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for index, _ in function.find_tokens(CPP_ROUND_UP):
        if function.tokens[index + 1].text == "(":
            arguments = list(map(function.get_text, function.split_arguments(index + 1)))
            if len(arguments) == 2:
                span = (function.find_name_start(index), function.partners[index + 1] + 1)
                after = f"({wrap_in_brackets(arguments[0])} / {wrap_in_brackets(arguments[1])})"
                words = "a partly filled last one is not counted"
                yield function.replace(span, after, words)
    for index, _ in function.find_tokens("/"):
        opening = function.partners.get(index - 1)
        if function.tokens[index - 1].text == ")" and opening is not None:
            terms = function.split((opening + 1, index - 1), frozenset({"+"}))
            last = function.get_text(terms[-1])
            if len(terms) > 1 and last.endswith("- 1"):
                rest = " + ".join(map(function.get_text, terms[:-1]))
                words = "a partly filled last one is not counted"
                yield function.replace((opening, index), wrap_in_brackets(rest), words)
