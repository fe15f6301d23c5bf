"""A test of the mode, or of a switch, is answered the other way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, last_name
from harness.registry.schema import Symptom

TITLE = "Take the wrong branch of a mode's test"
PRS = (20606, 24640, 26859)
SYMPTOM = Symptom.CRASH
MODE = re.compile(
    r"^is_(decode|extend|idle|mixed|target_verify|draft_extend|decode_or_idle|prefill)$"
)
# What the machine is, and not what the batch is: one machine takes one side only.
MACHINE = re.compile(r"is_(cuda|hip|npu|xpu|cpu|musa|amd|blackwell|sm\d+|gfx\d+)|^_?use_aiter")
SIBLING = {
    "is_decode": "is_decode_or_idle",
    "is_decode_or_idle": "is_decode",
    "is_extend": "is_decode_or_idle",
    "is_idle": "is_decode_or_idle",
    "is_mixed": "is_extend",
    "is_target_verify": "is_extend",
    "is_draft_extend": "is_extend",
    "is_prefill": "is_decode_or_idle",
}


def find(function: FunctionCode) -> Iterator[Change]:
    for node in function.nodes:
        if isinstance(node, ast.If | ast.IfExp):
            yield from negated(function, node.test)
        if isinstance(node, ast.BoolOp) and not any(
            isinstance(value, ast.Constant) for value in node.values
        ):
            yield from shortened(function, node)
        mode = mode_asked(node)
        if mode is not None:
            yield sibling(function, mode)


def negated(function: FunctionCode, test: ast.expr) -> Iterator[Change]:
    """A test of one thing turned round; of several, their own faults say more."""
    if isinstance(test, ast.BoolOp | ast.NamedExpr) or of_machine(test) or of_nothing(test):
        return
    if mode_asked(test) is not None:
        return  # its sibling says more
    code, words = function.code(test), "the test is answered the other way"
    turned = {"is": "is not", "is not": "is", "==": "!=", "!=": "=="}
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield function.replaced(test, function.code(test.operand), words)
    elif isinstance(test, ast.Compare):
        right = test.comparators[0]
        start, end = function.span(test.left)[1], function.span(right)[0]
        between = function.module.text[start:end]
        sign = between.strip()
        if len(test.ops) == 1 and sign in turned:
            yield Change(start, end, between.replace(sign, turned[sign]), words)
    else:
        yield function.replaced(test, f"not {code}", words)


def of_machine(test: ast.expr) -> bool:
    return any(MACHINE.search(last_name(node)) for node in ast.walk(test))


def of_nothing(test: ast.expr) -> bool:
    """`x is None`: turned round it fails at once, which no suite can miss."""
    return isinstance(test, ast.Compare) and ast.unparse(test.comparators[0]) == "None"


def shortened(function: FunctionCode, node: ast.BoolOp) -> Iterator[Change]:
    """Each condition of an `and` or `or` forgotten."""
    for index, condition in enumerate(node.values):
        if of_machine(condition) or of_nothing(condition):
            continue
        words = f"{function.code(condition)} is not asked"
        if len(node.values) == 2:
            yield function.replaced(node, function.code(node.values[1 - index]), words)
        else:
            yield operand_dropped(function, node, index, words)


def operand_dropped(function: FunctionCode, node: ast.BoolOp, index: int, words: str) -> Change:
    """Cut out where brackets allow it, else the whole is written anew."""
    spans = [function.span(value) for value in node.values]
    if index + 1 < len(spans):
        start, end = spans[index][0], spans[index + 1][0]
    else:
        start, end = spans[index - 1][1], spans[index][1]
    cut = function.module.text[start:end]
    if cut.count("(") == cut.count(")") and "#" not in cut:
        return Change(start, end, "", words)
    rest = [value for value in node.values if value is not node.values[index]]
    return function.replaced(node, ast.unparse(ast.BoolOp(node.op, rest)), words)


def mode_asked(node: ast.AST) -> ast.Attribute | None:
    """What is called in `mode.is_extend()`. A bare `is_extend(batch)` has no sibling to call."""
    called = node.func if isinstance(node, ast.Call) else None
    return called if isinstance(called, ast.Attribute) and MODE.match(called.attr) else None


def sibling(function: FunctionCode, called: ast.Attribute) -> Change:
    other = SIBLING[called.attr]
    start, end = function.span(called)
    after = function.code(called.value) + "." + other
    return Change(start, end, after, f"{other} is asked, not {called.attr}")
