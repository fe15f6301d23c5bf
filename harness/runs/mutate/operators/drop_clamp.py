"""A value is no longer limited."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode, Span, wrap_in_brackets
from harness.runs.mutate.cpp_code import is_number as is_number_literal
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
            yield function.replace_node(node, function.get_text(value), "the value is not clamped")


CPP_LIMITS = ("min", "max", "fmin", "fmax", "fminf", "fmaxf")


def find_cpp_changes(function: CppFunctionCode) -> Iterator[CodeChange]:
    for index, _ in function.find_tokens((*CPP_LIMITS, "clamp")):
        opening = find_call_bracket(function, index)
        arguments = function.split_arguments(opening) if opening else []
        span = (function.find_name_start(index), function.partners[opening] + 1 if opening else 0)
        texts = [function.get_text(argument) for argument in arguments]
        if function.tokens[index].text == "clamp":
            if len(texts) == 3:
                yield function.replace(span, wrap_in_brackets(texts[0]), "the value is not clamped")
        elif len(texts) == 2:
            for kept, limit in (texts, texts[::-1]):
                if not is_number_literal(kept):
                    words = f"{kept} is taken, whatever {limit} is"
                    yield function.replace(span, wrap_in_brackets(kept), words)
    for index, statement in function.find_tokens("?"):
        yield from drop_selection(function, index, statement)


def find_call_bracket(function: CppFunctionCode, index: int) -> int:
    """Return the bracket of a call's arguments, behind those of a template; 0 if there is none."""
    place = index + 1
    if function.tokens[place].text == "<":
        while function.tokens[place].text not in (">", ";", "("):
            place += 1
        place += 1
    return place if function.tokens[place].text == "(" and place in function.partners else 0


def drop_selection(function: CppFunctionCode, index: int, statement: Span) -> Iterator[CodeChange]:
    """Take the value of `value < limit ? limit : value` without the limit."""
    tokens, partners = function.tokens, function.partners
    start = index
    while start > statement[0] and tokens[start - 1].text not in ("=", "(", ",", "return", "{"):
        start -= 1
        start = partners.get(start, start) if tokens[start].text in (")", "]") else start
    end = index
    while end < statement[1] and tokens[end].text not in (";", ",", ")", "}"):
        end = partners.get(end, end) + 1 if tokens[end].text in ("(", "[") else end + 1
    signs = [n for n in range(start, index) if tokens[n].text in ("<", "<=", ">", ">=")]
    branches = function.split((index + 1, end), frozenset({":"}))
    if len(signs) != 1 or len(branches) != 2:
        return
    sides = [function.get_text(side) for side in ((start, signs[0]), (signs[0] + 1, index))]
    if sorted(sides) == sorted(function.get_text(branch) for branch in branches):
        for kept, limit in (sides, sides[::-1]):
            if not is_number_literal(kept):
                yield function.replace((start, end), kept, f"{kept} is taken, whatever {limit} is")
