"""Code as the text of a pattern: without comments, on one line if it is short, abbreviated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ast_grep_py import SgNode

from harness.fixes.patterns import get_indent, get_span, iterate_tokens, join_tokens, remove_indent

LINE_WIDTH = 88
NodeRun = tuple[SgNode, ...]


def to_normalized_code(node: SgNode) -> str:
    return join_tokens(iterate_tokens(node))


def render_pattern(text: str, run: Sequence[SgNode], as_is: bool = False) -> str:
    """Render code as a pattern: unindented, without comments, on one line if it is short."""
    if as_is:
        start, end = get_span(run[0])[0], get_span(run[-1])[1]
        return remove_indent(text[start:end], get_indent(text, start))
    return render_with_replacements(text, run, [])


def render_with_replacements(
    text: str, run: Sequence[SgNode], replacements: Sequence[tuple[SgNode, str]]
) -> str:
    """Render a run of code with some of its nodes replaced."""
    start, end = get_span(run[0])[0], get_span(run[-1])[1]
    holes = [(*get_span(node), put) for node, put in replacements]
    holes += [(*get_span(node), "") for outer in run for node in outer.find_all(kind="comment")]
    holes = [
        h for h in holes if not any(o is not h and o[0] <= h[0] and h[1] <= o[1] for o in holes)
    ]
    piece = text[start:end]
    for first, last, put in sorted(holes, reverse=True):
        piece = piece[: first - start] + put + piece[last - start :]
    piece = remove_indent(piece, get_indent(text, start))
    if any("\n" in node.text() for outer in run for node in outer.find_all(kind="string")):
        return piece
    lines = [line.rstrip() for line in piece.split("\n")]
    piece = "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
    if len(run) == 1 and not any(True for _ in run[0].find_all(kind="block")):
        line = re.sub(r"\s*\n\s*", " ", piece)
        line = re.sub(r"(?<=[(\[{]) ", "", re.sub(r",? (?=[)\]}])", "", line))
        if "\\" not in line and (len(line) <= LINE_WIDTH or not is_valid_python(piece)):
            return line
    return piece


def is_valid_python(piece: str) -> bool:
    """Return whether code parses by itself: an expression over several lines needs its brackets."""
    try:
        ast.parse(piece)
    except SyntaxError:
        return False
    return True


def abbreviate_pair(fixed: NodeRun, buggy: NodeRun, ours: str, theirs: str) -> tuple[str, str]:
    """Render two nodes as patterns; equal bodies and long equal parts become metavariables."""
    shared: dict[str, tuple[str, bool]] = {}
    shared_pieces = {to_normalized_code(n) for n in _iterate_long_pieces(fixed)} & {
        to_normalized_code(n) for n in _iterate_long_pieces(buggy)
    }
    pieces: tuple[list[SgNode], list[SgNode]] = ([], [])
    for run, found in zip((fixed, buggy), pieces, strict=True):
        _collect_shared(run, shared_pieces, found)
    counts = [[to_normalized_code(n) for n in found] for found in pieces]
    once = {c for c in counts[0] if counts[0].count(c) == 1 == counts[1].count(c)}
    for node in pieces[0]:
        key = to_normalized_code(node)
        if key in once and key not in shared:
            shared[key] = (_make_metavariable_name(node, len(shared)), node.kind() == "block")
    fixed_form, buggy_form = (
        render_with_replacements(
            text,
            run,
            [
                (n, to_metavariable(shared[to_normalized_code(n)]))
                for n in found
                if to_normalized_code(n) in shared
            ],
        )
        for run, found, text in zip((fixed, buggy), pieces, (ours, theirs), strict=True)
    )
    return fixed_form, buggy_form


def to_metavariable(naming: tuple[str, bool]) -> str:
    name, many = naming
    return f"$$${name}" if many else f"${name}"


LONG_PIECE = 60  # characters of a part that becomes a metavariable


def _iterate_long_pieces(run: Sequence[SgNode]) -> Iterator[SgNode]:
    for node in run:
        for child in node.children():
            if _can_be_metavariable(child):
                yield child
            yield from _iterate_long_pieces([child])


def _can_be_metavariable(node: SgNode) -> bool:
    if node.kind() == "block":
        return len(node.text()) > LONG_PIECE
    if not node.is_named() or node.kind().endswith(NOT_VALUES):
        return False
    if any(True for _ in node.find_all(kind="comment")):
        return True  # a pattern cannot skip a comment inside an expression
    parent = node.parent()
    return len(node.text()) > LONG_PIECE and parent is not None and parent.kind() in VALUE_PARENTS


VALUE_PARENTS = (
    "assignment",
    "argument_list",
    "return_statement",
    "assert_statement",
    "raise_statement",
)
NOT_VALUES = ("statement", "definition", "clause", "block", "comment", "list", "argument", "splat",
              "parameters", "type", "pair", "assignment", "pattern", "parameter")  # fmt: skip


def _collect_shared(
    run: Sequence[SgNode], shared_codes: set[str], shared_nodes: list[SgNode]
) -> None:
    for node in run:
        for child in node.children():
            if _can_be_metavariable(child) and to_normalized_code(child) in shared_codes:
                shared_nodes.append(child)
            else:
                _collect_shared([child], shared_codes, shared_nodes)


def _make_metavariable_name(node: SgNode, number: int) -> str:
    kind = "BODY" if node.kind() == "block" else "VALUE"
    return kind if number == 0 else f"{kind}_{number + 1}"
