"""What a toggle's edits are on another release, where the code has moved on.

First the forms as they are. Then the definition is looked for, where it was, under its name
elsewhere, or by what the edit is about, and the edit is carried there by tokens. Only where exactly
one place takes it, in exactly one direction, is there an answer.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from harness.adopt import imports, inlining, merging
from harness.adopt.forms import Telling, meaning
from harness.adopt.merging import Carried, Twice
from harness.adopt.places import about, defined, elsewhere, same
from harness.adopt.tokens import Lost, Token, text_of, tokens
from harness.errors import UnfixError
from harness.matching.states import State
from harness.patching.plan import Choice, Direction, make
from harness.registry.schema import Device, Edit, Symptom, Target, Toggle, Variant
from harness.releases.sources import SourceTree
from harness.syntax.patterns import indent_at, span
from harness.syntax.scopes import ModuleSource

FLIP = {State.FIXED: Direction.REVERT, State.BUGGY: Direction.ENABLE}
MOVED = 0.6  # of a definition's tokens, where it is the same one in another module
HARDLY = 0.25  # of them, where it has another name or another class
ALIKE = 0.4  # of a definition's tokens, where it goes by its name in another module


Scope = tuple[list[Token], str, int, int]


@dataclass(frozen=True)
class Known:
    """The edits of a toggle on a release where they hold, with both texts of each module."""

    tree: SourceTree
    state: State
    edits: tuple[Edit, ...]  # each with its target
    texts: dict[str, tuple[str, str]]  # module: with the fix, without it
    how: tuple[str, ...] = ()

    def targets(self) -> list[Target]:
        return list(dict.fromkeys(Target.parse(edit.target or "") for edit in self.edits))


def trial(edits: Iterable[Edit], releases: str = "!=0") -> Toggle:
    """Edits as a toggle of no name, to be tried."""
    variant = Variant(releases=releases, edits=tuple(edits))
    return Toggle(
        id="trial",
        title="trial",
        family="trial",
        symptom=Symptom.CRASH,
        devices=(Device.CPU,),
        variants=(variant,),
    )


def known(edits: Iterable[Edit], tree: SourceTree, how: tuple[str, ...] = ()) -> Known | None:
    """What these edits are on a release, if they hold there and can be made."""
    toggle = trial(edits)
    finding = find_quietly(toggle, tree)
    if finding not in FLIP:
        return None
    try:
        plan = make([Choice(toggle, FLIP[finding])], tree, str(tree.version))
    except UnfixError:
        return None
    texts = {}
    for module in plan.modules:
        source = tree.read(module.module)
        assert source is not None
        pair = (source.text, module.text)
        texts[module.module] = pair if finding is State.FIXED else (pair[1], pair[0])
    return Known(tree, finding, toggle.variants[0].edits, texts, how)


def find_quietly(toggle: Toggle, tree: SourceTree) -> State:
    """The state, without the nearest source of a stale one, which takes a while to find."""
    from harness.matching.states import locate

    states = set()
    for edit in toggle.variants[0].edits:
        site = locate(edit, toggle.variants[0].target_of(edit), tree)
        if isinstance(site, str):
            return State.STALE
        states.add(site.state)
    return states.pop() if len(states) == 1 else State.STALE


def follow(there: Known, tree: SourceTree) -> Known | str:
    """The same edits on another release, or why there are none."""
    plain = known(there.edits, tree)
    lacking = wanting(plain) if plain is not None else ""
    if plain is not None and not lacking:
        lost = plain.state is State.BUGGY and there.state is State.FIXED
        return (again(there, tree) if lost else "") or plain
    try:
        moved = [_moved(target, there, tree) for target in there.targets()]
    except Lost as lost:
        return lacking or str(lost)
    states = {one.state for one in moved}
    if len(states) > 1:
        return "its places disagree: some are fixed there and some are not"
    edits: list[Edit] = []
    how: list[str] = []
    texts: dict[str, tuple[str, str]] = {}
    for one in moved:
        module = one.target.module
        source = tree.read(module)
        assert source is not None
        base = texts.get(module, (source.text, source.text))[1]
        texts[module] = (source.text, _put(base, one))
        how.append(one.how)
    for module, (text, other) in texts.items():
        pair = (text, other) if moved[0].state is State.FIXED else (other, text)
        told, untold = Telling(module, *pair).edits()
        if untold:
            return f"no pair of forms tells the edit from the rest of {module}"
        edits += [one.edit for one in told]
    result = known(edits, tree, tuple(dict.fromkeys(how)))
    if result is None or result.state is not moved[0].state:
        return "the forms that were made for it do not hold"
    return result


def wanting(plain: Known) -> str:
    """The name that a fix is made of and that its module does not have."""
    if plain.state is State.FIXED:
        return ""
    for target in plain.targets():
        fixed, buggy = (ModuleSource("", "", text) for text in plain.texts[target.module])
        made, theirs = (_scope(one, target.qualname)[0] for one in (fixed, buggy))
        for name in _unknown(made, theirs, buggy):
            return f"{target}: it has no {name}"
    return ""


def importing(plain: Known, texts: Mapping[str, tuple[str, str]]) -> Known | str:
    """A fix that is not there yet, with the imports that it needs, as these texts have them."""
    edits: list[Edit] = []
    for module, (fixed, buggy) in plain.texts.items():
        for target in (one for one in plain.targets() if one.module == module):
            made, indent, start, end = _scope(ModuleSource("", "", fixed), target.qualname)
            source = ModuleSource("", "", buggy)
            names = _unknown(made, _scope(source, target.qualname)[0], source)
            if names:
                try:
                    made = imports.inside(made, names, texts[module][0], source, plain.tree)
                except Lost as lost:
                    return f"{target}: {lost}"
                fixed = fixed[:start] + text_of(made, indent) + fixed[end:]
        edits += [one.edit for one in Telling(module, fixed, buggy).edits()[0]]
    return known(edits, plain.tree) or "its imports cannot be told from the rest of it"


def again(there: Known, tree: SourceTree) -> str:
    """Why a buggy form is no bug: what the fix puts in stands in a line of its own there."""
    for target in there.targets():
        source = tree.read(target.module)
        assert source is not None
        fixed, buggy = (_scope(ModuleSource("", "", text), target.qualname)[0]
                        for text in there.texts[target.module])  # fmt: skip
        if merging.says_already(buggy, fixed, _scope(source, target.qualname)[0]):
            return f"{target}: its buggy form is there, and so is what the fix puts in"
    return ""


@dataclass(frozen=True)
class Moved:
    """A target found on another release, with the edit made to it."""

    target: Target
    state: State
    start: int
    end: int
    text: str
    how: str
    whole: bool  # it stands there token for token but for names: it has only moved


def _put(base: str, moved: Moved) -> str:
    source = ModuleSource("", "", base)
    (scope,) = source.scopes(moved.target.qualname)
    start, end = span(scope)
    return base[:start] + moved.text + base[end:]


def _moved(target: Target, there: Known, tree: SourceTree) -> Moved:
    """The one place of the release that takes the edit of this target."""
    sides = [_scope(ModuleSource("", "", text), target.qualname)
             for text in there.texts[target.module]]  # fmt: skip
    sides[0] = (imports.without(sides[0][0], sides[1][0]), *sides[0][1:])
    plain = (sides[0], sides[1])
    written = _written_out(target, there, sides)
    here = same(target, tree)
    named = here or list(elsewhere(target, tree))
    stages: list[tuple[Iterable[Target], tuple[Scope, Scope]]] = [(named, plain)]
    if written is not None:
        stages.append((named, written))
    words = merging.words_around(plain[0][0], plain[1][0])
    stages.append((about(target, words, tree, target.module if here else ""), plain))
    reasons: list[str] = []
    for places, texts in stages:
        found: list[Moved] = []
        for place in places:
            if place != target and defined(place, there.tree):
                continue  # it stood there already, so nothing moved to it
            try:
                found.append(_tried(texts, target, place, tree, there))
            except Twice:
                raise
            except Lost as lost:
                reasons.append(f"{place}: {lost}")
        if len(found) > 1:
            found = _not_of_twins(found, target, there.tree)
            found = [one for one in found if one.whole] or found
        if len(found) == 1:
            return found[0]
        if found:
            raise Lost(f"{len(found)} places take it: {', '.join(str(f.target) for f in found)}")
    raise Lost(reasons[0] if reasons else f"nothing there is like {target}")


def _not_of_twins(found: list[Moved], target: Target, tree: SourceTree) -> list[Moved]:
    """Without the places that lie where only another definition of this name has its own."""
    others = {part for twin in elsewhere(target, tree) for part in twin.module.split(".")}
    theirs = others - set(target.module.split("."))
    return [one for one in found if theirs.isdisjoint(one.target.module.split("."))]


def _written_out(target: Target, there: Known, sides: list[Scope]) -> tuple[Scope, Scope] | None:
    """Both texts without the helpers that the edit is made of, where it has any."""
    names = merging.names_in_edit(sides[0][0], sides[1][0])
    both: list[Scope] = []
    for text, (found, indent, start, end) in zip(there.texts[target.module], sides, strict=True):
        plain = inlining.inlined(found, names, target.module, text, there.tree)
        for name in names:
            plain = inlining.without_local(plain, name)
        both.append((plain, indent, start, end))
    both[1] = (inlining.without_narrow_casts(both[0][0], both[1][0]), *both[1][1:])
    if all(one[0] == side[0] for one, side in zip(both, sides, strict=True)):
        return None
    return both[0], both[1]


def _scope(source: ModuleSource, qualname: str) -> tuple[list[Token], str, int, int]:
    scopes = source.scopes(qualname)
    if len(scopes) != 1:
        raise Lost(f"{qualname or 'it'} is defined {len(scopes)} times")
    start, end = span(scopes[0])
    indent = indent_at(source.text, start)
    return tokens(source.text[start:end], indent), indent, start, end


def _tried(
    texts: tuple[Scope, Scope], target: Target, place: Target, tree: SourceTree, there: Known
) -> Moved:
    fixed, buggy = texts
    strange = place != target
    newer = bool(tree.version and there.tree.version and tree.version > there.tree.version)
    source = tree.read(place.module)
    if source is None:
        raise Lost("there is no such module")
    theirs, indent, start, end = _scope(source, place.qualname)
    results: list[tuple[State, Carried]] = []
    losses: list[str] = []
    for side, before, after in ((State.FIXED, fixed, buggy), (State.BUGGY, buggy, fixed)):
        try:
            carried = merging.carry(before[0], after[0], theirs)
            names = _unknown(carried.tokens, theirs, source)
            if names and side is State.FIXED:
                raise Lost(f"it has no {names[0]}")
            if names:
                text = there.texts[target.module][0]
                made = imports.inside(carried.tokens, names, text, source, tree)
                carried = replace(carried, tokens=made, imported=tuple(names))
            results.append((side, carried))
        except Twice:
            raise
        except Lost as lost:
            losses.append(str(lost))
    if not results:
        raise Lost(losses[0 if there.state is State.FIXED else 1])
    if len(results) > 1:  # the plainer one, if it is plain
        exact = [one for one in results if not one[1].loose]
        if len(exact) != 1:
            raise Lost("the edit fits both ways")
        results = exact
    side, carried = results[0]
    if newer and side is State.BUGGY and carried.loose:
        raise Lost("what stood there reads otherwise since: it may be mended in another way")
    moved = place.qualname == target.qualname and carried.alike >= MOVED
    if strange and carried.loose and not moved:
        raise Lost("it is not word for word what it was")
    if strange and carried.alike < (ALIKE if place.qualname == target.qualname else HARDLY):
        raise Lost("it is too little like what it was")
    words = f"{place}: {carried.alike:.0%} of the code around it is there"
    if strange:
        words = f"{target} is {words}"
    if carried.renamed:
        words += ", ".join(["", *(f"{a} is {b}" for a, b in carried.renamed.items())])
    if carried.loose:
        words += ", what is taken out reads otherwise"
    if carried.fewer:
        words += f", {carried.fewer} of its places alike are not there"
    if carried.imported:
        words += f", it imports {', '.join(carried.imported)} itself"
    text = text_of(carried.tokens, indent)
    before = fixed if side is State.FIXED else buggy
    whole = carried.alike == 1 and len(before[0]) == len(theirs)
    return Moved(place, side, start, end, text, words, whole)


def _unknown(made: list[Token], theirs: list[Token], source: ModuleSource) -> list[str]:
    """The names that an edit brings and that are not known there."""
    new = Counter(t.text for t in made if t.name)
    new.subtract(t.text for t in theirs if t.name)
    return [
        name
        for name, many in new.items()
        if many > 0
        and not keyword.iskeyword(name)
        and not hasattr(builtins, name)
        and not re.search(rf"\b{re.escape(name)}\b", source.text)
        and not _bound(name, made)
    ]


def _bound(name: str, made: list[Token]) -> bool:
    """Whether the edit itself makes the name, or takes it from something that has it."""
    texts = [t.text for t in made]
    return any(
        text == name and (texts[n + 1 : n + 2] == ["="] or texts[n - 1 : n] == ["."])
        for n, text in enumerate(texts)
    )


def same_effect(one: Known, other: Known) -> bool:
    """Whether two toggles make the same of a release."""
    return one.texts.keys() == other.texts.keys() and all(
        [meaning(a) for a in pair] == [meaning(b) for b in other.texts[module]]
        for module, pair in one.texts.items()
    )
