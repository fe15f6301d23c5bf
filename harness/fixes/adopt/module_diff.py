"""Converts two texts of a module into edits: the smallest pairs of forms that distinguish them.

The texts are compared as syntax trees, so comments and layout never differ. For each difference
the candidates are, from small to large: the expression, the nodes around it, its statement, and
its statement with up to three neighbours (`text_diff` chooses). Example: `f(a + 1)` against `f(a)`,
in a function with a second `f(a)`: the pair `f(a + 1)`/`f(a)` is ambiguous, the statement
`x = f(a + 1)`/`x = f(a)` is not.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ast_grep_py import SgNode

from harness.core.source_scopes import DEFINITION_KINDS, ModuleSource, get_defined_name
from harness.fixes.adopt.pattern_text import (
    NodeRun,
    abbreviate_pair,
    render_pattern,
    to_normalized_code,
)
from harness.fixes.adopt.text_diff import (
    IMPORT_ONLY,
    MAX_NEIGHBOURS,
    MESSAGE_ONLY,
    NEW_CODE,
    EditSpan,
    TextDiff,
)
from harness.fixes.patterns import get_indent, get_span, iterate_tokens

SHORT_EXPRESSION = 100  # characters: a shorter one with two differences is one difference
BLOCK_KINDS = ("block", "module")
DEFINITION_NODE_KINDS = (*DEFINITION_KINDS, "decorated_definition")
NON_PATTERN_KINDS = ("argument_list", "parameters", "elif_clause", "else_clause", "except_clause",
              "decorator", "keyword_argument", "dictionary", "pair", "import_list")  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """Sibling nodes in which the two texts differ; one side may be empty."""

    fixed: tuple[SgNode, ...]
    buggy: tuple[SgNode, ...]
    parents: tuple[SgNode, SgNode]
    child_indices: tuple[int, int] = (0, 0)  # the first index among each parent's children

    def locate_in_fixed(self) -> tuple[int, int]:
        """Return the span in the fixed text; empty if the fixed side is empty."""
        if self.fixed:
            return get_span(self.fixed[0])[0], get_span(self.fixed[-1])[1]
        following = list_children(self.parents[0])[self.child_indices[0] :]
        at = get_span(following[0])[0] if following else get_span(self.parents[0])[1]
        return at, at

    def revert(self, fixed: str, buggy: str) -> str:
        """Return the fixed text with this difference reverted."""
        start, end = self.locate_in_fixed()
        if not self.buggy:
            return f"{fixed[:start]}pass{fixed[end:]}"
        old = render_pattern(buggy, self.buggy, as_is=True)
        indent = get_indent(fixed, start) if self.fixed or start < len(fixed) else ""
        old = "\n".join([old.split("\n")[0], *(indent + x if x.strip() else x
                                                for x in old.split("\n")[1:])])  # fmt: skip
        if self.fixed:
            return fixed[:start] + old + fixed[end:]
        following = list_children(self.parents[0])[self.child_indices[0] :]
        if following:
            return f"{fixed[:start]}{old}\n{indent}{fixed[end:]}"
        inside = get_indent(fixed, get_span(self.parents[0])[0])
        return f"{fixed[:start]}\n{inside}{old}{fixed[end:]}"


def dump_syntax(text: str) -> str:
    """Return a text's syntax tree as a string; comments and layout do not change it."""
    return ast.dump(ast.parse(text))


def list_children(node: SgNode) -> list[SgNode]:
    """List the children of a node, without comments and the comma that ends a list."""
    found = [n for n in node.children() if n.kind() not in ("comment", "line_continuation")]
    if len(found) > 2 and found[-2].kind() == "," and node.kind() != "tuple":
        del found[-2]
    return found


def find_differences(fixed: SgNode, buggy: SgNode) -> Iterator[NodeDifference]:
    """Yield the differences of two trees, as deep as possible."""
    if fixed.text() == buggy.text() or to_normalized_code(fixed) == to_normalized_code(buggy):
        return
    ours, theirs = list_children(fixed), list_children(buggy)
    parents = (fixed.parent() or fixed, buggy.parent() or buggy)
    if fixed.kind() != buggy.kind() or not ours or not theirs or _is_nested(fixed, buggy):
        yield NodeDifference((fixed,), (buggy,), parents)
        return
    many = fixed.kind() in BLOCK_KINDS
    compared = difflib.SequenceMatcher(
        None,
        [to_normalized_code(child) for child in ours],
        [to_normalized_code(child) for child in theirs],
        autojunk=False,
    )
    found: list[NodeDifference] = []
    for kind, a, b, c, d in compared.get_opcodes():
        if kind == "equal":
            continue
        if many:
            found += _pair_statements(ours[a:b], theirs[c:d], (fixed, buggy), (a, c))
        elif b - a == d - c and all(
            our_child.is_named() and our_child.kind() == their_child.kind()
            for our_child, their_child in zip(ours[a:b], theirs[c:d], strict=True)
        ):
            for our_child, their_child in zip(ours[a:b], theirs[c:d], strict=True):
                found += find_differences(our_child, their_child)
        elif b - a == d - c == 1 and ours[a].is_named() and theirs[c].is_named():
            found.append(NodeDifference((ours[a],), (theirs[c],), (fixed, buggy)))
        else:
            yield NodeDifference((fixed,), (buggy,), parents)
            return
    if not many and len(found) > 1 and max(len(fixed.text()), len(buggy.text())) < SHORT_EXPRESSION:
        found = [NodeDifference((fixed,), (buggy,), parents)]
    yield from found


def _is_nested(first: SgNode, second: SgNode) -> bool:
    """Return whether one value contains the other, as `f(x).to(y)` contains `f(x)`."""
    if first.kind() not in ("call", "attribute", "subscript", "binary_operator"):
        return False
    return any(
        to_normalized_code(inner) == to_normalized_code(whole)
        for outer, whole in ((first, second), (second, first))
        for child in outer.children()
        for inner in (child, *child.find_all(kind=whole.kind()))
    )


def _pair_statements(
    ours: list[SgNode],
    theirs: list[SgNode],
    parents: tuple[SgNode, SgNode],
    offsets: tuple[int, int],
) -> Iterator[NodeDifference]:
    """Pair statements by name or similarity, and yield the differences of each pair."""
    pairs: list[tuple[int, int]] = []
    free = 0
    for index, statement in enumerate(ours):
        best, which = max(
            (
                (_measure_similarity(statement, theirs[position]), -position)
                for position in range(free, len(theirs))
            ),
            default=(0.0, 0),
        )
        if best > 0.6:
            pairs.append((index, -which))
            free = 1 - which
    a = c = 0
    for b, d in [*pairs, (len(ours), len(theirs))]:
        if b > a or d > c:
            yield NodeDifference(
                tuple(ours[a:b]), tuple(theirs[c:d]), parents, (offsets[0] + a, offsets[1] + c)
            )
        if b < len(ours) and d < len(theirs):
            yield from find_differences(ours[b], theirs[d])
        a, c = b + 1, d + 1


def _measure_similarity(first: SgNode, second: SgNode) -> float:
    if first.kind() != second.kind():
        return 0.0
    if first.kind() in DEFINITION_NODE_KINDS:
        return 1.0 if get_defined_name(first) == get_defined_name(second) else 0.0
    mine, its = list(iterate_tokens(first)), list(iterate_tokens(second))
    if min(len(mine), len(its)) * 4 < max(len(mine), len(its)):
        return 0.0
    return difflib.SequenceMatcher(None, mine, its, autojunk=False).ratio()


class ModuleDiff(TextDiff[NodeDifference, NodeRun]):
    """The differences of two texts of a Python module."""

    def __init__(self, module: str, fixed: str, buggy: str) -> None:
        self.module = module
        self.fixed = ModuleSource(module, module, fixed)
        self.buggy = ModuleSource(module, module, buggy)
        self.differences = list(find_differences(self.fixed.root, self.buggy.root))

    def describe(self, difference: NodeDifference) -> str:
        node = (difference.fixed or difference.buggy)[0]
        first_line = " ".join(node.text().split("\n")[0].split())
        return f"{self.module}:{find_qualname(node) or '(module)'}: {first_line[:60]}"

    def explain_inert(self, difference: NodeDifference) -> str:
        nodes = (*difference.fixed, *difference.buggy)
        if all(_is_in_import(node) for node in nodes):
            return IMPORT_ONLY
        if not difference.buggy and all(node.kind() in DEFINITION_NODE_KINDS for node in nodes):
            return NEW_CODE
        return MESSAGE_ONLY if all(_is_message_text(node) for node in nodes) else ""

    def iterate_candidates(self, difference: NodeDifference) -> Iterator[tuple[NodeRun, NodeRun]]:
        return iterate_candidates(difference)

    def locate_run(self, source: ModuleSource, run: NodeRun) -> tuple[int, int]:
        return get_span(run[0])[0], get_span(run[-1])[1]

    def iterate_forms(self, fixed: NodeRun, buggy: NodeRun) -> Iterator[tuple[str, str, str]]:
        name = find_qualname(fixed[0])
        if name == find_qualname(buggy[0]):
            texts = self.fixed.text, self.buggy.text
            yield name, *abbreviate_pair(fixed, buggy, *texts)
            yield name, render_pattern(texts[0], fixed), render_pattern(texts[1], buggy)

    def is_covered(self, difference: NodeDifference, edit_spans: Sequence[EditSpan]) -> bool:
        start, end = difference.locate_in_fixed()
        return bool(difference.fixed) and any(
            span.start <= start and end <= span.end for span in edit_spans
        )


def _is_in_import(node: SgNode) -> bool:
    return any("import" in outer.kind() for outer in _iterate_outwards(node))


def _is_message_text(node: SgNode) -> bool:
    """Return whether a node is a docstring, or a string in a log call or an error."""
    if node.kind() == "expression_statement":
        return node.text().lstrip("rbf").startswith(('"', "'"))
    if node.kind() not in ("string", "concatenated_string", "string_content"):
        return False
    holder = next((n for n in _iterate_outwards(node) if n.kind().endswith("statement")), node)
    return bool(re.match(r"logger\.|raise |warnings\.|print\(|assert |[\"']", holder.text()))


def _iterate_outwards(node: SgNode) -> Iterator[SgNode]:
    current: SgNode | None = node
    while current is not None:
        yield current
        current = current.parent()


def iterate_candidates(difference: NodeDifference) -> Iterator[tuple[NodeRun, NodeRun]]:
    """Yield candidate forms, from the difference outwards, on both sides at once."""
    fixed, buggy, parents = difference.fixed, difference.buggy, difference.parents
    at: tuple[int, int] | None = difference.child_indices if not (fixed and buggy) else None
    while True:
        if parents[0].kind() in BLOCK_KINDS and parents[1].kind() in BLOCK_KINDS:
            if fixed and buggy:
                yield fixed, buggy
            yield from _iterate_with_neighbours(fixed, buggy, parents, at)
        elif fixed[0].kind() not in NON_PATTERN_KINDS and buggy[0].kind() not in NON_PATTERN_KINDS:
            yield fixed, buggy
        if parents[0].kind() == "module" or parents[1].kind() == "module":
            return
        fixed, buggy, at = (parents[0],), (parents[1],), None
        outer = (parents[0].parent(), parents[1].parent())
        if outer[0] is None or outer[1] is None:
            return
        parents = (outer[0], outer[1])


def _iterate_with_neighbours(
    fixed: NodeRun, buggy: NodeRun, parents: tuple[SgNode, SgNode], offsets: tuple[int, int] | None
) -> Iterator[tuple[NodeRun, NodeRun]]:
    """Yield candidates with up to MAX_NEIGHBOURS statements before, after, and on both sides."""
    ours, theirs = list_children(parents[0]), list_children(parents[1])
    a, c = offsets or (_find_index(ours, fixed[0]), _find_index(theirs, buggy[0]))
    b, d = a + len(fixed), c + len(buggy)
    for many in range(1, MAX_NEIGHBOURS + 1):
        before = min(many, a, c)
        after = min(many, len(ours) - b, len(theirs) - d)
        for up, down in dict.fromkeys([(before, after), (before, 0), (0, after)]):
            fixed_run, buggy_run = tuple(ours[a - up : b + down]), tuple(theirs[c - up : d + down])
            if fixed_run and buggy_run:
                yield fixed_run, buggy_run


def _find_index(block: list[SgNode], node: SgNode) -> int:
    return next(number for number, child in enumerate(block) if get_span(child) == get_span(node))


def find_qualname(node: SgNode) -> str:
    """Return the qualified name of the innermost definition that contains a node."""
    _, *outer_nodes = _iterate_outwards(node)
    names = [
        get_defined_name(definition)
        for definition in outer_nodes
        if definition.kind() in DEFINITION_KINDS
    ]
    return ".".join(reversed(names))
