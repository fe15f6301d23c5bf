"""Converts two texts of a module into edits: the smallest pairs of forms that distinguish them.

The texts are compared as syntax trees, so comments and layout never differ. For each difference
the candidates are, from small to large: the expression, the nodes around it, its statement, and
its statement with up to three neighbours. The first pair in which each form matches its own text
exactly once and the other text not at all becomes the edit. Example: `f(a + 1)` against `f(a)`, in
a function with a second `f(a)`: the pair `f(a + 1)`/`f(a)` is ambiguous, the statement
`x = f(a + 1)`/`x = f(a)` is not.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ast_grep_py import SgNode

from harness.core.errors import UnfixError
from harness.core.source_scopes import DEFINITION_KINDS, ModuleSource, get_defined_name
from harness.fixes.adopt.pattern_text import (
    NodeRun,
    abbreviate_pair,
    render_pattern,
    to_normalized_code,
)
from harness.fixes.forms import parse_form
from harness.fixes.patterns import get_indent, get_span, iterate_tokens
from harness.fixes.registry.schema import ToggleEdit
from harness.fixes.registry.toggle_reader import find_edit_problem

MAX_NEIGHBOURS = 3
SHORT_EXPRESSION = 100  # characters: a shorter one with two differences is one difference
MAX_FORM_LINES = 40  # lines: any change in a longer form would make the toggle stale
BLOCK_KINDS = ("block", "module")
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
        behind = list_children(self.parents[0])[self.child_indices[0] :]
        at = get_span(behind[0])[0] if behind else get_span(self.parents[0])[1]
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
        behind = list_children(self.parents[0])[self.child_indices[0] :]
        if behind:
            return f"{fixed[:start]}{old}\n{indent}{fixed[end:]}"
        inside = get_indent(fixed, get_span(self.parents[0])[0])
        return f"{fixed[:start]}\n{inside}{old}{fixed[end:]}"


@dataclass(frozen=True, slots=True)
class EditSpan:
    """One edit, and its span in the fixed text."""

    edit: ToggleEdit
    start: int
    end: int


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
            one.is_named() and one.kind() == other.kind()
            for one, other in zip(ours[a:b], theirs[c:d], strict=True)
        ):
            for one, other in zip(ours[a:b], theirs[c:d], strict=True):
                found += find_differences(one, other)
        elif b - a == d - c == 1 and ours[a].is_named() and theirs[c].is_named():
            found.append(NodeDifference((ours[a],), (theirs[c],), (fixed, buggy)))
        else:
            yield NodeDifference((fixed,), (buggy,), parents)
            return
    if not many and len(found) > 1 and max(len(fixed.text()), len(buggy.text())) < SHORT_EXPRESSION:
        found = [NodeDifference((fixed,), (buggy,), parents)]
    yield from found


def _is_nested(one: SgNode, other: SgNode) -> bool:
    """Return whether one value contains the other, as `f(x).to(y)` contains `f(x)`."""
    if one.kind() not in ("call", "attribute", "subscript", "binary_operator"):
        return False
    return any(
        to_normalized_code(inner) == to_normalized_code(whole)
        for outer, whole in ((one, other), (other, one))
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
    for index, one in enumerate(ours):
        best, which = max(
            (
                (_measure_similarity(one, theirs[other]), -other)
                for other in range(free, len(theirs))
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


def _measure_similarity(one: SgNode, other: SgNode) -> float:
    if one.kind() != other.kind():
        return 0.0
    if one.kind() in (*DEFINITION_KINDS, "decorated_definition"):
        return 1.0 if get_defined_name(one) == get_defined_name(other) else 0.0
    mine, its = list(iterate_tokens(one)), list(iterate_tokens(other))
    if min(len(mine), len(its)) * 4 < max(len(mine), len(its)):
        return 0.0
    return difflib.SequenceMatcher(None, mine, its, autojunk=False).ratio()


class ModuleDiff:
    """The differences of two texts of a module, and the edits that describe them."""

    def __init__(self, module: str, fixed: str, buggy: str) -> None:
        self.module = module
        self.fixed = ModuleSource(module, module, fixed)
        self.buggy = ModuleSource(module, module, buggy)
        self.differences = list(find_differences(self.fixed.root, self.buggy.root))

    def build_edits(self) -> tuple[list[EditSpan], list[NodeDifference]]:
        """Return the edits in the order of the text, and the differences that no edit describes."""
        spans: list[EditSpan] = []
        unresolved: list[NodeDifference] = []
        for place in self.differences:
            start, end = place.locate_in_fixed()
            if place.fixed and any(t.start <= start and end <= t.end for t in spans):
                continue
            found = self._find_edit(place, spans)
            if found is None:
                unresolved.append(place)
            else:
                spans = [t for t in spans if not (found.start <= t.start and t.end <= found.end)]
                spans.append(found)
        return spans, unresolved

    def _find_edit(
        self, difference: NodeDifference, edit_spans: Sequence[EditSpan]
    ) -> EditSpan | None:
        for fixed, buggy in iterate_candidates(difference):
            start, end = get_span(fixed[0])[0], get_span(fixed[-1])[1]
            crossing = [t for t in edit_spans if t.start < end and start < t.end]
            if any(not (start <= t.start and t.end <= end) for t in crossing):
                continue
            name = find_qualname(fixed[0])
            if name != find_qualname(buggy[0]):
                continue
            edit = self._build_edit(fixed, buggy, name)
            if edit is not None:
                return EditSpan(edit, start, end)
        return None

    def _build_edit(self, fixed: NodeRun, buggy: NodeRun, name: str) -> ToggleEdit | None:
        target = f"{self.module}:{name}" if name else self.module
        short = abbreviate_pair(fixed, buggy, self.fixed.text, self.buggy.text)
        plain = render_pattern(self.fixed.text, fixed), render_pattern(self.buggy.text, buggy)
        for ours, theirs in (short, plain):
            if max(ours.count("\n"), theirs.count("\n")) >= MAX_FORM_LINES:
                continue
            edit = ToggleEdit(fixed=ours, buggy=theirs, target=target)
            starts = get_span(fixed[0])[0], get_span(buggy[0])[0]
            if is_distinguishing(edit, self.fixed, self.buggy, name, starts):
                return edit
        return None


def is_distinguishing(
    edit: ToggleEdit,
    fixed: ModuleSource,
    buggy: ModuleSource,
    name: str,
    starts: tuple[int, int],
) -> bool:
    """Return whether the edit is valid, and each form matches once in its own text only.

    `starts` are the places of the forms in the fixed and in the buggy text.
    """
    try:
        if find_edit_problem(edit, fixed.module):
            return False
        places = {
            (text, side): [
                match.start
                for scope in source.find_scopes(name)
                for match in parse_form(side, source.module).find(scope, source.text)
            ]
            for text, source in (("fixed", fixed), ("buggy", buggy))
            for side in (edit.fixed, edit.buggy)
        }
    except UnfixError:  # not a valid pattern
        return False
    return (
        places["fixed", edit.fixed] == [starts[0]]
        and places["buggy", edit.buggy] == [starts[1]]
        and not places["fixed", edit.buggy]
        and not places["buggy", edit.fixed]
    )


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
        behind = min(many, len(ours) - b, len(theirs) - d)
        for up, down in dict.fromkeys([(before, behind), (before, 0), (0, behind)]):
            one, other = tuple(ours[a - up : b + down]), tuple(theirs[c - up : d + down])
            if one and other:
                yield one, other


def _find_index(block: list[SgNode], node: SgNode) -> int:
    return next(number for number, one in enumerate(block) if get_span(one) == get_span(node))


def find_qualname(node: SgNode) -> str:
    """Return the qualified name of the innermost definition that contains a node."""
    names = []
    here = node.parent()
    while here is not None:
        if here.kind() in DEFINITION_KINDS:
            names.append(get_defined_name(here))
        here = here.parent()
    return ".".join(reversed(names))
