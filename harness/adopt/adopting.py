"""From both texts of some modules to toggles: told, followed, named."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ast_grep_py import SgNode

from harness.adopt import course
from harness.adopt.anchoring import Anchor, Left
from harness.adopt.course import Course
from harness.adopt.following import importing, known, wanting
from harness.adopt.forms import Place, Telling, Told, scope_of
from harness.adopt.patches import PYTHON
from harness.adopt.renaming import unrenamed
from harness.errors import UnfixError
from harness.matching.states import State
from harness.registry.catalogue import Catalogue
from harness.registry.schema import Device, Edit, Symptom, Target, Toggle
from harness.releases.sources import SourceTree
from harness.syntax.scopes import ModuleSource

LAYOUT = "comments or layout alone"


@dataclass(frozen=True)
class Story:
    """What a person says of a fix."""

    id: str
    title: str
    symptom: Symptom
    family: str = ""
    upstream: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Adopted:
    """One toggle of a fix, with what it is on each release."""

    toggle: Toggle
    course: Course


@dataclass(frozen=True)
class Part:
    """Edits that belong together."""

    name: str
    edits: tuple[Edit, ...]


def parts(anchor: Anchor, whole: bool = False) -> tuple[list[Part], list[Left]]:
    """The edits of a fix, apart where they are independent, and what is no part of any."""
    told: list[Told] = []
    left: list[Left] = []
    for module, (fixed, changed) in anchor.texts.items():
        buggy, renamed = unrenamed(fixed, changed)
        left += [Left(f"{module}:{one}", "a name alone") for one in renamed]
        telling = Telling(module, fixed, buggy)
        if not telling.places:
            left.append(Left(module, LAYOUT))
        telling.places, away = _the_fix(telling.places, module)
        left += away
        found, untold = telling.edits()
        told += found
        left += [Left(_where(place, module), _why_untold(place)) for place in untold]
    if not told:
        reasons = "; ".join(f"{one.what}: {one.why}" for one in left)
        raise UnfixError(f"nothing of it can be a toggle: {reasons}")
    groups = [told] if whole else _groups(told, anchor.texts)
    named = [Part(_name(group), tuple(one.edit for one in group)) for group in groups]
    return named, left


def _the_fix(places: Sequence[Place], module: str) -> tuple[list[Place], list[Left]]:
    """Without imports and new definitions, which do nothing by themselves, if more is there."""
    kept, left = [], []
    for place in places:
        new = place.fixed and not place.buggy
        kinds = {node.kind() for node in (*place.fixed, *place.buggy)}
        if kinds <= {"import_statement", "import_from_statement", "future_import_statement"} or all(
            _in_import(node) for node in (*place.fixed, *place.buggy)
        ):
            left.append(
                (
                    place,
                    Left(
                        _where(place, module),
                        "an import: it stays, and does nothing",
                    ),
                )
            )
        elif new and kinds <= {"function_definition", "class_definition", "decorated_definition"}:
            left.append((place, Left(_where(place, module), "new code: it stays, uncalled")))
        elif all(_is_text(node) for node in (*place.fixed, *place.buggy)):
            left.append((place, Left(_where(place, module), "words for a reader")))
        else:
            kept.append(place)
    if not kept:
        new_code = [place for place, why in left if why.why.startswith("new code")]
        return new_code, [why for place, why in left if place not in new_code]
    return kept, [why for _, why in left]


def _in_import(node: SgNode) -> bool:
    return any(outer.kind().startswith("import") for outer in _outwards(node))


def _is_text(node: SgNode) -> bool:
    """A docstring, or a string that a log or an error says."""
    if node.kind() == "expression_statement":
        return node.text().lstrip("rbf").startswith(('"', "'"))
    if node.kind() not in ("string", "concatenated_string", "string_content"):
        return False
    holder = next((n for n in _outwards(node) if n.kind().endswith("statement")), node)
    return bool(re.match(r"logger\.|raise |warnings\.|print\(|assert |[\"']", holder.text()))


def _outwards(node: SgNode) -> Iterator[SgNode]:
    here: SgNode | None = node
    while here is not None:
        yield here
        here = here.parent()


def _where(place: Place, module: str) -> str:
    nodes = place.fixed or place.buggy
    name = scope_of(nodes[0])
    first = " ".join(nodes[0].text().split("\n")[0].split())
    return f"{module}:{name or '(module)'}: {first[:60]}"


def _why_untold(place: Place) -> str:
    if not place.buggy and not place.fixed:
        return LAYOUT
    return "no pair of forms of a few lines tells it from the rest of its scope"


def _groups(told: Sequence[Told], texts: Mapping[str, tuple[str, str]]) -> list[list[Told]]:
    """Edits of one function, or that share a name which the fix brings or takes, are one."""
    groups: list[tuple[set[str], list[Told]]] = []
    for one in told:
        pair = texts[Target.parse(one.edit.target or "").module]
        names = {f"@{one.edit.target}"} | _own_names(one.edit, pair)
        same = [group for group in groups if group[0] & names]
        for group in same:
            names |= group[0]
        members = [member for group in same for member in group[1]] + [one]
        groups = [group for group in groups if group not in same] + [(names, members)]
    order = {id(one): number for number, one in enumerate(told)}
    sorted_groups = [sorted(members, key=lambda t: order[id(t)]) for _, members in groups]
    return sorted(sorted_groups, key=lambda members: order[id(members[0])])


def _own_names(edit: Edit, texts: tuple[str, str]) -> set[str]:
    """The names that only one of a module's two texts has, as far as the edit has them."""
    mine, its = (set(re.findall(r"[A-Za-z_]\w{3,}", side)) for side in (edit.fixed, edit.buggy))
    fixed, buggy = (set(re.findall(r"[A-Za-z_]\w{3,}", text)) for text in texts)
    return (mine - its - buggy) | (its - mine - fixed)


def _name(group: Sequence[Told]) -> str:
    target = Target.parse(group[0].edit.target or "")
    word = target.qualname.rpartition(".")[2] or target.module.rpartition(".")[2]
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")


def adopt(
    part: Part, anchor: Anchor, story: Story, trees: Sequence[SourceTree], registry: Catalogue
) -> Adopted:
    """A part of a fix as a toggle, with what it is on every release."""
    there = known(part.edits, anchor.tree)
    if there is None:
        raise UnfixError(f"{part.name}: its forms do not hold on {anchor.tree.name} together")
    if wanting(there):
        needed = importing(there, anchor.texts)
        if isinstance(needed, str):
            raise UnfixError(f"{part.name}: {needed}")
        there = needed
    run = course.through(there, trees)
    variants = course.variants(run)
    if not variants:
        raise UnfixError(
            f"{part.name}: no release has it: it is to be looked for in a commit alone"
        )
    targets = list(dict.fromkeys(target for variant in variants for target in variant.targets))
    toggle = Toggle(
        id=story.id,
        title=story.title,
        family=story.family or registry.family_of(targets),
        symptom=story.symptom,
        devices=(Device.CPU, Device.CUDA),
        variants=variants,
        upstream=story.upstream,
        why=story.why,
    )
    return Adopted(toggle, run)


@dataclass(frozen=True)
class Change:
    """One difference between two releases, to be chosen."""

    module: str
    name: str  # the definition that holds it
    place: Place
    after: str
    before: str


def between(older: SourceTree, newer: SourceTree, words: Sequence[str]) -> list[Change]:
    """What changed between two releases in modules or definitions of that name."""
    found = []
    for module in newer.modules():
        after = newer.read(module) if PYTHON.match(f"{module.replace('.', '/')}.py") else None
        if after is None or not all(word in module or word in after.text for word in words):
            continue
        before = older.read(module) or _namesake(module, older, newer)
        if before is None or before.text == after.text:
            continue
        for place in Telling(module, after.text, before.text).places:
            name = scope_of((place.fixed or place.buggy)[0])
            if all(word in f"{module}:{name}" for word in words):
                found.append(Change(module, name, place, after.text, before.text))
    return found


def _namesake(module: str, older: SourceTree, newer: SourceTree) -> ModuleSource | None:
    """Where a module stood before it moved: the one of its own last name that is gone since."""
    name = module.rpartition(".")[2]
    gone = [m for m in older.modules() if m.rpartition(".")[2] == name and newer.read(m) is None]
    return older.read(gone[0]) if len(gone) == 1 else None


def chosen(changes: Sequence[Change], newer: SourceTree) -> Anchor:
    """These differences as a fix: the newer release, and it with them taken back."""
    texts: dict[str, tuple[str, str]] = {}
    for change in sorted(changes, key=lambda one: -one.place.span()[0]):
        text = texts.get(change.module, (change.after, change.after))[1]
        texts[change.module] = (change.after, change.place.taken_back(text, change.before))
    return Anchor(newer, State.FIXED, texts, ())


def diff_of(place: Place) -> str:
    """A place as the lines that went and came."""
    sides = ["\n".join(n.text() for n in nodes).split("\n") for nodes in (place.buggy, place.fixed)]
    lines = difflib.unified_diff(sides[0], sides[1], lineterm="", n=1)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
