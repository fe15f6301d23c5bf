"""A test of the mode, or of a switch, has the opposite result."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_last_name

TITLE = "Take the wrong branch of a mode's test"
PRS = (20606, 24640, 26859)
SYMPTOM = Symptom.CRASH
MODE_TEST = re.compile(
    r"^is_(decode|extend|idle|mixed|target_verify|draft_extend|decode_or_idle|prefill)$"
)
# Tests of the machine, not of the batch: one machine only ever runs one branch.
MACHINE_TEST = re.compile(r"is_(cuda|hip|npu|xpu|cpu|musa|amd|blackwell|sm\d+|gfx\d+)|^_?use_aiter")
SIBLING_MODES = {
    "is_decode": "is_decode_or_idle",
    "is_decode_or_idle": "is_decode",
    "is_extend": "is_decode_or_idle",
    "is_idle": "is_decode_or_idle",
    "is_mixed": "is_extend",
    "is_target_verify": "is_extend",
    "is_draft_extend": "is_extend",
    "is_prefill": "is_decode_or_idle",
}


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for node in function.mutable_nodes:
        if isinstance(node, ast.If | ast.IfExp):
            yield from iterate_negations(function, node.test)
        if isinstance(node, ast.BoolOp) and not any(
            isinstance(value, ast.Constant) for value in node.values
        ):
            yield from iterate_dropped_conditions(function, node)
        mode = find_mode_test(node)
        if mode is not None:
            yield swap_mode_test(function, mode)


def iterate_negations(function: FunctionCode, test: ast.expr) -> Iterator[CodeChange]:
    """Negate a test of one condition; the parts of an `and` or `or` have faults of their own."""
    if isinstance(test, ast.BoolOp | ast.NamedExpr) or is_machine_test(test) or is_none_test(test):
        return
    if find_mode_test(test) is not None:
        return  # the swap with its sibling is the better fault
    code, words = function.get_text(test), "the test is answered the other way"
    turned = {"is": "is not", "is not": "is", "==": "!=", "!=": "=="}
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield function.replace_node(test, function.get_text(test.operand), words)
    elif isinstance(test, ast.Compare):
        right = test.comparators[0]
        start, end = function.get_span(test.left)[1], function.get_span(right)[0]
        between = function.module.text[start:end]
        sign = between.strip()
        if len(test.ops) == 1 and sign in turned:
            yield CodeChange(start, end, between.replace(sign, turned[sign]), words)
    else:
        yield function.replace_node(test, f"not {code}", words)


def is_machine_test(test: ast.expr) -> bool:
    return any(MACHINE_TEST.search(get_last_name(node)) for node in ast.walk(test))


def is_none_test(test: ast.expr) -> bool:
    """Return whether a test is `x is None`: negated it fails at once, which any suite detects."""
    return isinstance(test, ast.Compare) and ast.unparse(test.comparators[0]) == "None"


def iterate_dropped_conditions(function: FunctionCode, node: ast.BoolOp) -> Iterator[CodeChange]:
    """Drop each condition of an `and` or `or`."""
    for index, condition in enumerate(node.values):
        if is_machine_test(condition) or is_none_test(condition):
            continue
        words = f"{function.get_text(condition)} is no longer tested"
        if len(node.values) == 2:
            yield function.replace_node(node, function.get_text(node.values[1 - index]), words)
        else:
            yield drop_operand(function, node, index, words)


def drop_operand(
    function: FunctionCode, node: ast.BoolOp, index: int, description: str
) -> CodeChange:
    """Cut an operand out if its brackets are balanced; otherwise render the whole again."""
    spans = [function.get_span(value) for value in node.values]
    if index + 1 < len(spans):
        start, end = spans[index][0], spans[index + 1][0]
    else:
        start, end = spans[index - 1][1], spans[index][1]
    cut = function.module.text[start:end]
    if cut.count("(") == cut.count(")") and "#" not in cut:
        return CodeChange(start, end, "", description)
    rest = [value for value in node.values if value is not node.values[index]]
    return function.replace_node(node, ast.unparse(ast.BoolOp(node.op, rest)), description)


def find_mode_test(node: ast.AST) -> ast.Attribute | None:
    """Return the function in `mode.is_extend()`; a bare `is_extend(batch)` has no sibling."""
    called = node.func if isinstance(node, ast.Call) else None
    return called if isinstance(called, ast.Attribute) and MODE_TEST.match(called.attr) else None


def swap_mode_test(function: FunctionCode, mode_test: ast.Attribute) -> CodeChange:
    other = SIBLING_MODES[mode_test.attr]
    start, end = function.get_span(mode_test)
    after = function.get_text(mode_test.value) + "." + other
    return CodeChange(start, end, after, f"{other} is tested, not {mode_test.attr}")


CPP_SIGNS = {"==": "!=", "!=": "=="}


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    words = "the test is answered the other way"
    for span in function.mutable_statements:
        opening = span[0] + 1 + (function.tokens[span[0] + 1].text == "constexpr")
        if function.tokens[span[0]].text != "if" or function.tokens[opening].text != "(":
            continue
        condition = (opening + 1, span[1] - 1)
        for sign in ("&&", "||"):
            parts = function.split(condition, frozenset({sign}))
            if len(parts) > 1:
                for part in parts:
                    rest = f" {sign} ".join(map(function.get_text, [p for p in parts if p != part]))
                    text = f"{function.get_text(part)} is no longer tested"
                    yield function.replace(condition, rest, text)
                break
        else:
            texts = [function.tokens[n].text for n in range(*condition)]
            turned = [condition[0] + n for n, text in enumerate(texts) if text in CPP_SIGNS]
            if len(turned) == 1:
                sign = CPP_SIGNS[function.tokens[turned[0]].text]
                yield function.replace((turned[0], turned[0] + 1), sign, words)
            elif not {"<", "<=", ">", ">="} & set(texts):
                yield function.replace(condition, f"!({function.get_text(condition)})", words)
