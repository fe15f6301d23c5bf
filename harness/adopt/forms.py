"""Two texts of a module as edits: the smallest pairs of forms that tell one from the other.

The two are compared as trees, so that comments and layout are no difference. What differs is told
by as little code as will do: the expression, what it stands in, its statement, its neighbours too.
The first pair that the registry takes, each form once where it should stand, is the one.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ast_grep_py import SgNode

from harness.adopt.wording import Run, abbreviated, code, cut
from harness.errors import UnfixError
from harness.matching.states import form
from harness.registry.files import edit_problem
from harness.registry.schema import Edit
from harness.syntax.patterns import indent_at, leaves, span
from harness.syntax.scopes import DEFINITIONS, ModuleSource, defined_name

NEIGHBOURS = 3
SHORT = 100  # characters of an expression that is shown whole, where it differs twice
LONGEST = 40  # lines of one form: nobody reads more, and any edit in them makes the toggle stale
STATEMENTS = ("block", "module")
NO_PATTERN = ("argument_list", "parameters", "elif_clause", "else_clause", "except_clause",
              "decorator", "keyword_argument", "dictionary", "pair", "import_list")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where the two texts differ: neighbouring nodes of each, one of the two may have none."""

    fixed: tuple[SgNode, ...]
    buggy: tuple[SgNode, ...]
    parents: tuple[SgNode, SgNode]
    at: tuple[int, int] = (0, 0)  # where each begins among its parent's children

    def span(self) -> tuple[int, int]:
        """In the fixed text; of nothing there, where it would stand."""
        if self.fixed:
            return span(self.fixed[0])[0], span(self.fixed[-1])[1]
        behind = children(self.parents[0])[self.at[0] :]
        at = span(behind[0])[0] if behind else span(self.parents[0])[1]
        return at, at

    def taken_back(self, fixed: str, buggy: str) -> str:
        """The fixed text with this place as it is in the buggy one."""
        start, end = self.span()
        if not self.buggy:
            return f"{fixed[:start]}pass{fixed[end:]}"
        old = cut(buggy, self.buggy, as_is=True)
        indent = indent_at(fixed, start) if self.fixed or start < len(fixed) else ""
        old = "\n".join([old.split("\n")[0], *(indent + x if x.strip() else x
                                                for x in old.split("\n")[1:])])  # fmt: skip
        if self.fixed:
            return fixed[:start] + old + fixed[end:]
        behind = children(self.parents[0])[self.at[0] :]
        if behind:
            return f"{fixed[:start]}{old}\n{indent}{fixed[end:]}"
        inside = indent_at(fixed, span(self.parents[0])[0])
        return f"{fixed[:start]}\n{inside}{old}{fixed[end:]}"


@dataclass(frozen=True, slots=True)
class Told:
    """One edit, and the part of each text that it is about."""

    edit: Edit
    start: int
    end: int


def meaning(text: str) -> str:
    """A text but for its comments and layout."""
    return ast.dump(ast.parse(text))


def children(node: SgNode) -> list[SgNode]:
    """What a node is made of, without comments and the comma that ends a list."""
    found = [n for n in node.children() if n.kind() not in ("comment", "line_continuation")]
    if len(found) > 2 and found[-2].kind() == "," and node.kind() != "tuple":
        del found[-2]
    return found


def differences(fixed: SgNode, buggy: SgNode) -> Iterator[Place]:
    """Where two trees differ, as deep in them as they are alike."""
    if fixed.text() == buggy.text() or code(fixed) == code(buggy):
        return
    ours, theirs = children(fixed), children(buggy)
    parents = (fixed.parent() or fixed, buggy.parent() or buggy)
    if fixed.kind() != buggy.kind() or not ours or not theirs or _wrapped(fixed, buggy):
        yield Place((fixed,), (buggy,), parents)
        return
    many = fixed.kind() in STATEMENTS
    compared = difflib.SequenceMatcher(
        None, [code(child) for child in ours], [code(child) for child in theirs], autojunk=False
    )
    found: list[Place] = []
    for kind, a, b, c, d in compared.get_opcodes():
        if kind == "equal":
            continue
        if many:
            found += _runs(ours[a:b], theirs[c:d], (fixed, buggy), (a, c))
        elif b - a == d - c and all(
            one.is_named() and one.kind() == other.kind()
            for one, other in zip(ours[a:b], theirs[c:d], strict=True)
        ):
            for one, other in zip(ours[a:b], theirs[c:d], strict=True):
                found += differences(one, other)
        elif b - a == d - c == 1 and ours[a].is_named() and theirs[c].is_named():
            found.append(Place((ours[a],), (theirs[c],), (fixed, buggy)))
        else:
            yield Place((fixed,), (buggy,), parents)
            return
    if not many and len(found) > 1 and max(len(fixed.text()), len(buggy.text())) < SHORT:
        found = [Place((fixed,), (buggy,), parents)]
    yield from found


def _wrapped(one: SgNode, other: SgNode) -> bool:
    """Whether one value stands inside the other, as `f(x)` in `f(x).to(y)`."""
    if one.kind() not in ("call", "attribute", "subscript", "binary_operator"):
        return False
    return any(
        code(inner) == code(whole)
        for outer, whole in ((one, other), (other, one))
        for child in outer.children()
        for inner in (child, *child.find_all(kind=whole.kind()))
    )


def _runs(
    ours: list[SgNode],
    theirs: list[SgNode],
    parents: tuple[SgNode, SgNode],
    at: tuple[int, int],
) -> Iterator[Place]:
    """Statements that gave way to others: those of one name or most alike are one that changed."""
    pairs: list[tuple[int, int]] = []
    free = 0
    for index, one in enumerate(ours):
        best, which = max(
            ((_alike(one, theirs[other]), -other) for other in range(free, len(theirs))),
            default=(0.0, 0),
        )
        if best > 0.6:
            pairs.append((index, -which))
            free = 1 - which
    a = c = 0
    for b, d in [*pairs, (len(ours), len(theirs))]:
        if b > a or d > c:
            yield Place(tuple(ours[a:b]), tuple(theirs[c:d]), parents, (at[0] + a, at[1] + c))
        if b < len(ours) and d < len(theirs):
            yield from differences(ours[b], theirs[d])
        a, c = b + 1, d + 1


def _alike(one: SgNode, other: SgNode) -> float:
    if one.kind() != other.kind():
        return 0.0
    if one.kind() in (*DEFINITIONS, "decorated_definition"):
        return 1.0 if defined_name(one) == defined_name(other) else 0.0
    mine, its = list(leaves(one)), list(leaves(other))
    if min(len(mine), len(its)) * 4 < max(len(mine), len(its)):
        return 0.0
    return difflib.SequenceMatcher(None, mine, its, autojunk=False).ratio()


class Telling:
    """A pair of texts on its way to edits."""

    def __init__(self, module: str, fixed: str, buggy: str) -> None:
        self.module = module
        self.fixed = ModuleSource(module, module, fixed)
        self.buggy = ModuleSource(module, module, buggy)
        self.places = list(differences(self.fixed.root, self.buggy.root))

    def edits(self) -> tuple[list[Told], list[Place]]:
        """The edits, in the order of the text, and the places that no pair of forms tells."""
        told: list[Told] = []
        untold: list[Place] = []
        for place in self.places:
            start, end = place.span()
            if place.fixed and any(t.start <= start and end <= t.end for t in told):
                continue
            found = self._tell(place, told)
            if found is None:
                untold.append(place)
            else:
                told = [t for t in told if not (found.start <= t.start and t.end <= found.end)]
                told.append(found)
        return told, untold

    def _tell(self, place: Place, told: Sequence[Told]) -> Told | None:
        for fixed, buggy in candidates(place):
            start, end = span(fixed[0])[0], span(fixed[-1])[1]
            crossing = [t for t in told if t.start < end and start < t.end]
            if any(not (start <= t.start and t.end <= end) for t in crossing):
                continue
            name = scope_of(fixed[0])
            if name != scope_of(buggy[0]):
                continue
            edit = self._edit(fixed, buggy, name)
            if edit is not None:
                return Told(edit, start, end)
        return None

    def _edit(self, fixed: Run, buggy: Run, name: str) -> Edit | None:
        target = f"{self.module}:{name}" if name else self.module
        short = abbreviated(fixed, buggy, self.fixed.text, self.buggy.text)
        plain = cut(self.fixed.text, fixed), cut(self.buggy.text, buggy)
        for ours, theirs in (short, plain):
            if max(ours.count("\n"), theirs.count("\n")) >= LONGEST:
                continue
            edit = Edit(fixed=ours, buggy=theirs, target=target)
            if self._holds(edit, name, span(fixed[0])[0], span(buggy[0])[0]):
                return edit
        return None

    def _holds(self, edit: Edit, name: str, fixed: int, buggy: int) -> bool:
        """Whether the registry takes it, and each form stands in its text once, the other not."""
        try:
            if edit_problem(edit):
                return False
            places = {
                (text, side): [
                    match.start
                    for scope in source.scopes(name)
                    for match in form(side).find(scope, source.text)
                ]
                for text, source in (("fixed", self.fixed), ("buggy", self.buggy))
                for side in (edit.fixed, edit.buggy)
            }
        except UnfixError:  # no pattern; whatever else happens is ours to hear of
            return False
        return (
            places["fixed", edit.fixed] == [fixed]
            and places["buggy", edit.buggy] == [buggy]
            and not places["fixed", edit.buggy]
            and not places["buggy", edit.fixed]
        )


def candidates(place: Place) -> Iterator[tuple[Run, Run]]:
    """What a form may hold, from the difference outwards, on both sides at once."""
    fixed, buggy, parents = place.fixed, place.buggy, place.parents
    at: tuple[int, int] | None = place.at if not (fixed and buggy) else None
    while True:
        if parents[0].kind() in STATEMENTS and parents[1].kind() in STATEMENTS:
            if fixed and buggy:
                yield fixed, buggy
            yield from _with_neighbours(fixed, buggy, parents, at)
        elif fixed[0].kind() not in NO_PATTERN and buggy[0].kind() not in NO_PATTERN:
            yield fixed, buggy
        if parents[0].kind() == "module" or parents[1].kind() == "module":
            return
        fixed, buggy, at = (parents[0],), (parents[1],), None
        outer = (parents[0].parent(), parents[1].parent())
        if outer[0] is None or outer[1] is None:
            return
        parents = (outer[0], outer[1])


def _with_neighbours(
    fixed: Run, buggy: Run, parents: tuple[SgNode, SgNode], at: tuple[int, int] | None
) -> Iterator[tuple[Run, Run]]:
    """With the statements before, behind, and both: one, two, three of them."""
    ours, theirs = children(parents[0]), children(parents[1])
    a, c = at or (_index(ours, fixed[0]), _index(theirs, buggy[0]))
    b, d = a + len(fixed), c + len(buggy)
    for many in range(1, NEIGHBOURS + 1):
        before = min(many, a, c)
        behind = min(many, len(ours) - b, len(theirs) - d)
        for up, down in dict.fromkeys([(before, behind), (before, 0), (0, behind)]):
            one, other = tuple(ours[a - up : b + down]), tuple(theirs[c - up : d + down])
            if one and other:
                yield one, other


def _index(block: list[SgNode], node: SgNode) -> int:
    return next(number for number, one in enumerate(block) if span(one) == span(node))


def scope_of(node: SgNode) -> str:
    """The qualified name of the innermost definition that holds a node."""
    names = []
    here = node.parent()
    while here is not None:
        if here.kind() in DEFINITIONS:
            names.append(defined_name(here))
        here = here.parent()
    return ".".join(reversed(names))
