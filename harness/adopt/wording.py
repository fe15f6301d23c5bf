"""Code as the text of a pattern: without comments, on one line if it is short, abbreviated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ast_grep_py import SgNode

from harness.syntax.patterns import indent_at, joined, leaves, span, unindent

WIDTH = 88
Run = tuple[SgNode, ...]


def code(node: SgNode) -> str:
    return joined(leaves(node))


def cut(text: str, run: Sequence[SgNode], as_is: bool = False) -> str:
    """A piece of code as a pattern: unindented, without comments, on one line if it is short."""
    if as_is:
        start, end = span(run[0])[0], span(run[-1])[1]
        return unindent(text[start:end], indent_at(text, start))
    return written(text, run, [])


def written(text: str, run: Sequence[SgNode], replaced: Sequence[tuple[SgNode, str]]) -> str:
    """A run of code with some of its nodes replaced."""
    start, end = span(run[0])[0], span(run[-1])[1]
    holes = [(*span(node), put) for node, put in replaced]
    holes += [(*span(node), "") for outer in run for node in outer.find_all(kind="comment")]
    holes = [
        h for h in holes if not any(o is not h and o[0] <= h[0] and h[1] <= o[1] for o in holes)
    ]
    piece = text[start:end]
    for first, last, put in sorted(holes, reverse=True):
        piece = piece[: first - start] + put + piece[last - start :]
    piece = unindent(piece, indent_at(text, start))
    if any("\n" in node.text() for outer in run for node in outer.find_all(kind="string")):
        return piece
    lines = [line.rstrip() for line in piece.split("\n")]
    piece = "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
    if len(run) == 1 and not any(True for _ in run[0].find_all(kind="block")):
        line = re.sub(r"\s*\n\s*", " ", piece)
        line = re.sub(r"(?<=[(\[{]) ", "", re.sub(r",? (?=[)\]}])", "", line))
        if "\\" not in line and (len(line) <= WIDTH or not reads(piece)):
            return line
    return piece


def reads(piece: str) -> bool:
    """Whether code says the same by itself: an expression over several lines needs its brackets."""
    try:
        ast.parse(piece)
    except SyntaxError:
        return False
    return True


def abbreviated(fixed: Run, buggy: Run, ours: str, theirs: str) -> tuple[str, str]:
    """The two as patterns, in which bodies and long pieces that are alike are metavariables."""
    shared: dict[str, tuple[str, bool]] = {}
    both = {code(n) for n in _long(fixed)} & {code(n) for n in _long(buggy)}
    pieces: tuple[list[SgNode], list[SgNode]] = ([], [])
    for run, found in zip((fixed, buggy), pieces, strict=True):
        _cover(run, both, found)
    counts = [[code(n) for n in found] for found in pieces]
    once = {c for c in counts[0] if counts[0].count(c) == 1 == counts[1].count(c)}
    for node in pieces[0]:
        key = code(node)
        if key in once and key not in shared:
            shared[key] = (_name(node, len(shared)), node.kind() == "block")
    one, other = (
        written(text, run, [(n, shared_name(shared[code(n)])) for n in found if code(n) in shared])
        for run, found, text in zip((fixed, buggy), pieces, (ours, theirs), strict=True)
    )
    return one, other


def shared_name(named: tuple[str, bool]) -> str:
    name, many = named
    return f"$$${name}" if many else f"${name}"


LONG = 60  # characters of a piece that a metavariable says better


def _long(run: Sequence[SgNode]) -> Iterator[SgNode]:
    for node in run:
        for child in node.children():
            if _coverable(child):
                yield child
            yield from _long([child])


def _coverable(node: SgNode) -> bool:
    if node.kind() == "block":
        return len(node.text()) > LONG
    if not node.is_named() or node.kind().endswith(NOT_VALUES):
        return False
    if any(True for _ in node.find_all(kind="comment")):
        return True  # which a pattern does not look past, inside an expression
    parent = node.parent()
    return len(node.text()) > LONG and parent is not None and parent.kind() in HOLDERS


HOLDERS = ("assignment", "argument_list", "return_statement", "assert_statement", "raise_statement")
NOT_VALUES = ("statement", "definition", "clause", "block", "comment", "list", "argument", "splat",
              "parameters", "type", "pair", "assignment", "pattern", "parameter")  # fmt: skip


def _cover(run: Sequence[SgNode], both: set[str], found: list[SgNode]) -> None:
    for node in run:
        for child in node.children():
            if _coverable(child) and code(child) in both:
                found.append(child)
            else:
                _cover([child], both, found)


def _name(node: SgNode, number: int) -> str:
    kind = "BODY" if node.kind() == "block" else "VALUE"
    return kind if number == 0 else f"{kind}_{number + 1}"
