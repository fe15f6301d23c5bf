"""Inlines helpers: an older release has the same code without the helper function.

A constant becomes its value, and a call of a function that only returns an expression becomes that
expression. Example: with `def rows(n): return n * PAGE` and `PAGE = 1`, `rows(k)` becomes `k`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from harness.fixes.adopt import token_merge
from harness.fixes.adopt.code_tokens import (
    CLOSE,
    DEDENT,
    INDENT,
    NEWLINE,
    OPEN,
    CodeToken,
    PortError,
    split_lines,
    to_texts,
    tokenize_code,
)
from harness.releases.source_trees import SourceTree


def inline_helpers(
    source_tokens: Sequence[CodeToken], names: set[str], module: str, text: str, tree: SourceTree
) -> list[CodeToken]:
    """Replace these names by their definitions, where those are simple."""
    result = list(source_tokens)
    for name in names:
        meant = _find_definition(name, text, tree)
        if meant is None:
            continue
        parameters, body = meant
        at = 0
        while at < len(result):
            if result[at].text != name or (at and result[at - 1].text in (".", "def")):
                at += 1
            elif parameters is None:
                result[at : at + 1] = body
                at += len(body)
            elif result[at + 1 : at + 2] and result[at + 1].text == "(":
                arguments, end = _split_arguments(result, at + 2)
                if len(arguments) != len(parameters):
                    break
                put = dict(zip(parameters, arguments, strict=True))
                written = [part for t in body for part in put.get(t.text, [t])]
                result[at:end] = _drop_unit_factors(written)
                at += 1
            else:
                at += 1
    return result


def _find_definition(
    name: str, text: str, tree: SourceTree, depth: int = 2
) -> tuple[list[str] | None, list[CodeToken]] | None:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return None, [CodeToken(ast.get_source_segment(text, node.value) or "")]
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _parse_returned_expression(node, text)
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and depth
            and any((alias.asname or alias.name) == name for alias in node.names)
        ):
            source = tree.read(node.module)
            if source is None:
                return None
            return _find_definition(name, source.text, tree, depth - 1)
    return None


def _parse_returned_expression(
    node: ast.FunctionDef, text: str
) -> tuple[list[str], list[CodeToken]] | None:
    """Return the parameters of a function that only returns an expression, and the expression."""
    last = node.body[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    if not all(
        isinstance(statement, ast.Expr | ast.Assert | ast.Return) for statement in node.body
    ):
        return None
    segment = ast.get_source_segment(text, last.value) or ""
    return [a.arg for a in node.args.args], _tokenize_expression(segment)


def _tokenize_expression(segment: str) -> list[CodeToken]:
    try:
        return [
            t for t in tokenize_code(" ".join(segment.split()), "") if not t.text.startswith("<")
        ]
    except PortError:
        return []


def _split_arguments(
    source_tokens: Sequence[CodeToken], start: int
) -> tuple[list[list[CodeToken]], int]:
    """Split a call into its arguments, and return its end."""
    arguments: list[list[CodeToken]] = [[]]
    depth = 0
    for at in range(start, len(source_tokens)):
        text = source_tokens[at].text
        if text in CLOSE and not depth:
            return [argument for argument in arguments if argument], at + 1
        depth += (text in OPEN) - (text in CLOSE)
        if text == "," and not depth:
            arguments.append([])
        else:
            arguments[-1].append(source_tokens[at])
    return [], len(source_tokens)


def _drop_unit_factors(source_tokens: list[CodeToken]) -> list[CodeToken]:
    texts = [token.text for token in source_tokens]
    if "1" in texts and "*" in texts:
        at = texts.index("1")
        if at and texts[at - 1] == "*":
            return _drop_unit_factors(source_tokens[: at - 1] + source_tokens[at + 1 :])
        if texts[at + 1 : at + 2] == ["*"]:
            return _drop_unit_factors(source_tokens[:at] + source_tokens[at + 2 :])
    return source_tokens


def inline_local(source_tokens: Sequence[CodeToken], name: str) -> list[CodeToken]:
    """Replace a local variable that is assigned once by its value."""
    every = [(_find_line_start(source_tokens, a, b), b) for a, b in split_lines(source_tokens)]
    assignments = [(a, b) for a, b in every if to_texts(source_tokens[a : a + 2]) == (name, "=")]
    if len(assignments) != 1:
        return list(source_tokens)
    first, last = assignments[0]
    value = _strip_brackets(list(source_tokens[first + 2 : last - 1]))
    result: list[CodeToken] = list(source_tokens[:first])
    for at in range(last, len(source_tokens)):
        attribute = source_tokens[at - 1].text == "." or to_texts(
            source_tokens[at + 1 : at + 2]
        ) == ("=",)
        result += value if source_tokens[at].text == name and not attribute else [source_tokens[at]]
    return result


INT64_CAST, INT32_CAST = ((".", "to", "(", "tl", ".", f"int{bits}", ")") for bits in (64, 32))
INT32_BUILTINS = ("program_id", "num_programs", "arange")  # int32 in every launch


def drop_int32_casts(fixed: Sequence[CodeToken], buggy: Sequence[CodeToken]) -> list[CodeToken]:
    """Drop casts to 32 bits from the buggy tokens where the fixed ones cast to 64.

    Older code has no cast at all, which is equivalent if the value is int32 by itself. A loaded
    value has the type of its tensor, which may be int64, so its cast stays.
    """
    result = list(buggy)
    for i1, i2, j1, j2 in reversed(
        token_merge.find_hunks(token_merge.align_tokens(fixed, buggy), fixed, buggy)
    ):
        casts = (
            to_texts(fixed[i1 - 5 : i2 + 1]) == INT64_CAST
            and to_texts(buggy[j1 - 5 : j2 + 1]) == INT32_CAST
        )
        if casts and _is_int32_value(to_texts(buggy[: j1 - 5])):
            del result[j1 - 5 : j2 + 1]
    return result


def _is_int32_value(texts: tuple[str, ...]) -> bool:
    """Return whether the value at the end of these tokens is a program id or a range of lanes."""
    if texts[-1:] == (")",):
        start, depth = len(texts) - 1, 1
        while depth and start:
            start -= 1
            depth += {")": 1, "(": -1}.get(texts[start], 0)
        return texts[start - 3 : start - 1] == ("tl", ".") and texts[start - 1] in INT32_BUILTINS
    lines = " ".join(texts).split(NEWLINE)
    assigned_lines = [line.split() for line in lines[:-1] if f" {texts[-1]} = " in f" {line}"]
    words = {word for line_words in assigned_lines for word in line_words}
    return not words.isdisjoint(INT32_BUILTINS) and words.isdisjoint(("load", "int64"))


def _find_line_start(source_tokens: Sequence[CodeToken], first: int, last: int) -> int:
    """Find the start of a line after its indentation tokens."""
    return next(
        (at for at in range(first, last) if source_tokens[at].text not in (INDENT, DEDENT)), first
    )


def _strip_brackets(value: list[CodeToken]) -> list[CodeToken]:
    """Remove brackets around the whole of an expression."""
    depth = 0
    for at, token in enumerate(value):
        depth += (token.text in OPEN) - (token.text in CLOSE)
        if not depth and at < len(value) - 1:
            return value
    inner = [] if len(value) < 3 else value[1:-1]
    return inner if value[:1] and value[0].text == "(" and NEWLINE not in to_texts(inner) else value
