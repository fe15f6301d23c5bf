"""Helpers written out where they are used: before they came, the code said the same at length.

A constant is its value, and a function that does nothing but return an expression is that
expression. What is multiplied by one is left as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from harness.adopt import merging
from harness.adopt.tokens import CLOSE, IN, LINE, OPEN, OUT, Lost, Token, key, lines, tokens
from harness.releases.sources import SourceTree


def inlined(
    found: Sequence[Token], names: set[str], module: str, text: str, tree: SourceTree
) -> list[Token]:
    """The tokens with these names of a module written out, where they are that simple."""
    result = list(found)
    for name in names:
        meant = _meaning(name, module, text, tree)
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
                arguments, end = _arguments(result, at + 2)
                if len(arguments) != len(parameters):
                    break
                put = dict(zip(parameters, arguments, strict=True))
                written = [part for t in body for part in put.get(t.text, [t])]
                result[at:end] = _without_ones(written)
                at += 1
            else:
                at += 1
    return result


def _meaning(
    name: str, module: str, text: str, tree: SourceTree, deep: int = 2
) -> tuple[list[str] | None, list[Token]] | None:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return None, [Token(ast.get_source_segment(text, node.value) or "")]
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _returned(node, text)
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and deep
            and any((alias.asname or alias.name) == name for alias in node.names)
        ):
            source = tree.read(node.module)
            if source is None:
                return None
            return _meaning(name, node.module, source.text, tree, deep - 1)
    return None


def _returned(node: ast.FunctionDef, text: str) -> tuple[list[str], list[Token]] | None:
    """The parameters of a function that only returns an expression, and that expression."""
    last = node.body[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    if not all(isinstance(one, ast.Expr | ast.Assert | ast.Return) for one in node.body):
        return None
    segment = ast.get_source_segment(text, last.value) or ""
    return [a.arg for a in node.args.args], _expression(segment)


def _expression(segment: str) -> list[Token]:
    try:
        return [t for t in tokens(" ".join(segment.split()), "") if not t.text.startswith("<")]
    except Lost:
        return []


def _arguments(found: Sequence[Token], start: int) -> tuple[list[list[Token]], int]:
    """The arguments of a call, and where it ends."""
    arguments: list[list[Token]] = [[]]
    depth = 0
    for at in range(start, len(found)):
        text = found[at].text
        if text in CLOSE and not depth:
            return [one for one in arguments if one], at + 1
        depth += (text in OPEN) - (text in CLOSE)
        if text == "," and not depth:
            arguments.append([])
        else:
            arguments[-1].append(found[at])
    return [], len(found)


def _without_ones(found: list[Token]) -> list[Token]:
    texts = [token.text for token in found]
    if "1" in texts and "*" in texts:
        at = texts.index("1")
        if at and texts[at - 1] == "*":
            return _without_ones(found[: at - 1] + found[at + 1 :])
        if texts[at + 1 : at + 2] == ["*"]:
            return _without_ones(found[:at] + found[at + 2 :])
    return found


def without_local(found: Sequence[Token], name: str) -> list[Token]:
    """The tokens without a local variable that is assigned once, its value where it is used."""
    every = [(_begin(found, a, b), b) for a, b in lines(found)]
    own = [(a, b) for a, b in every if key(found[a : a + 2]) == (name, "=")]
    if len(own) != 1:
        return list(found)
    first, last = own[0]
    value = _bare(list(found[first + 2 : last - 1]))
    result: list[Token] = list(found[:first])
    for at in range(last, len(found)):
        attribute = found[at - 1].text == "." or key(found[at + 1 : at + 2]) == ("=",)
        result += value if found[at].text == name and not attribute else [found[at]]
    return result


WIDE, NARROW = ((".", "to", "(", "tl", ".", f"int{bits}", ")") for bits in (64, 32))
COUNTED = ("program_id", "num_programs", "arange")  # of 32 bits, whoever launches the kernel


def without_narrow_casts(fixed: Sequence[Token], buggy: Sequence[Token]) -> list[Token]:
    """The buggy tokens without casts to 32 bits where the fixed ones cast to 64.

    Such a cast says what code from before the fix does by saying nothing, if what is cast has 32
    bits of its own. What is loaded has as many as its tensor: left as it is, it may be right.
    """
    result = list(buggy)
    for i1, i2, j1, j2 in reversed(merging.hunks(merging.align(fixed, buggy), fixed, buggy)):
        casts = key(fixed[i1 - 5 : i2 + 1]) == WIDE and key(buggy[j1 - 5 : j2 + 1]) == NARROW
        if casts and _is_counted(key(buggy[: j1 - 5])):
            del result[j1 - 5 : j2 + 1]
    return result


def _is_counted(texts: tuple[str, ...]) -> bool:
    """Whether the value that these tokens end with is a program's number or a lane's."""
    if texts[-1:] == (")",):
        start, depth = len(texts) - 1, 1
        while depth and start:
            start -= 1
            depth += {")": 1, "(": -1}.get(texts[start], 0)
        return texts[start - 3 : start - 1] == ("tl", ".") and texts[start - 1] in COUNTED
    lines = " ".join(texts).split(LINE)
    bound = [one.split() for one in lines[:-1] if f" {texts[-1]} = " in f" {one}"]
    words = {word for one in bound for word in one}
    return not words.isdisjoint(COUNTED) and words.isdisjoint(("load", "int64"))


def _begin(found: Sequence[Token], first: int, last: int) -> int:
    """Where a line begins behind the marks of its indentation."""
    return next((at for at in range(first, last) if found[at].text not in (IN, OUT)), first)


def _bare(value: list[Token]) -> list[Token]:
    """An expression without brackets around the whole of it."""
    depth = 0
    for at, token in enumerate(value):
        depth += (token.text in OPEN) - (token.text in CLOSE)
        if not depth and at < len(value) - 1:
            return value
    inner = [] if len(value) < 3 else value[1:-1]
    return inner if value[:1] and value[0].text == "(" and LINE not in key(inner) else value
