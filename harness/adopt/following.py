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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ast_grep_py import SgNode

from harness.adopt import inlining, merging
from harness.adopt.forms import Telling, meaning
from harness.adopt.merging import Carried, Lost, Twice
from harness.errors import UnfixError
from harness.matching.states import State
from harness.patching.plan import Choice, Direction, make
from harness.registry.schema import Device, Edit, Symptom, Target, Toggle, Variant
from harness.releases.sources import SourceTree
from harness.syntax.patterns import indent_at, span
from harness.syntax.scopes import ModuleSource, defined_name, definitions, undecorated

FLIP = {State.FIXED: Direction.REVERT, State.BUGGY: Direction.ENABLE}
OTHER = {State.FIXED: State.BUGGY, State.BUGGY: State.FIXED}
WHERE = ("sglang.srt", "sglang.kernels", "sglang.jit_kernel")
WORD = re.compile(r"[A-Za-z_]\w{3,}")
FEW = 3  # words that tell code from other code
ABOUT = 0.75  # of them, what must be there
MOVED = 0.6  # of a definition's tokens, where it is the same one in another module
HARDLY = 0.25  # of them, where it has another name or another class
ALIKE = 0.4  # of a definition's tokens, where it goes by its name in another module


Scope = tuple[list[merging.Token], str, int, int]


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
    if plain is not None:
        lost = plain.state is State.BUGGY and there.state is State.FIXED
        return wanting(plain) or (again(there, tree) if lost else "") or plain
    try:
        moved = [_moved(target, there, tree) for target in there.targets()]
    except Lost as lost:
        return str(lost)
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
        try:
            _names_known(made, theirs, buggy)
        except Lost as lost:
            return f"{target}: {lost}"
    return ""


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


def _put(base: str, moved: Moved) -> str:
    source = ModuleSource("", "", base)
    (scope,) = source.scopes(moved.target.qualname)
    start, end = span(scope)
    return base[:start] + moved.text + base[end:]


def _moved(target: Target, there: Known, tree: SourceTree) -> Moved:
    """The one place of the release that takes the edit of this target."""
    sides = [_scope(ModuleSource("", "", text), target.qualname)
             for text in there.texts[target.module]]  # fmt: skip
    plain = (sides[0], sides[1])
    written = _written_out(target, there, sides)
    here = _same(target, tree)
    stages: list[tuple[Iterable[Target], tuple[Scope, Scope]]] = [(here, plain)]
    if written is not None:
        stages.append((here, written))
    if not here:
        stages.append((_elsewhere(target, tree), plain))
    stages.append((_about(target, plain, tree, target.module if here else ""), plain))
    reasons: list[str] = []
    for places, texts in stages:
        found: list[Moved] = []
        for place in places:
            if place != target and _defined(place, there.tree):
                continue  # it stood there already, so nothing moved to it
            try:
                found.append(_tried(texts, target, place, tree, there))
            except Twice:
                raise
            except Lost as lost:
                reasons.append(f"{place}: {lost}")
        if len(found) > 1:
            found = _not_of_twins(found, target, there.tree)
        if len(found) == 1:
            return found[0]
        if found:
            raise Lost(f"{len(found)} places take it: {', '.join(str(f.target) for f in found)}")
    raise Lost(reasons[0] if reasons else f"nothing there is like {target}")


def _not_of_twins(found: list[Moved], target: Target, tree: SourceTree) -> list[Moved]:
    """Without the places that lie where only another definition of this name has its own."""
    others = {part for twin in _elsewhere(target, tree) for part in twin.module.split(".")}
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
    if all(one[0] == side[0] for one, side in zip(both, sides, strict=True)):
        return None
    return both[0], both[1]


def _scope(source: ModuleSource, qualname: str) -> tuple[list[merging.Token], str, int, int]:
    scopes = source.scopes(qualname)
    if len(scopes) != 1:
        raise Lost(f"{qualname or 'it'} is defined {len(scopes)} times")
    start, end = span(scopes[0])
    indent = indent_at(source.text, start)
    return merging.tokens(source.text[start:end], indent), indent, start, end


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
            _names_known(carried.tokens, theirs, source)
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
    text = merging.text_of(carried.tokens, indent)
    return Moved(place, side, start, end, text, words)


def _names_known(
    made: list[merging.Token], theirs: list[merging.Token], source: ModuleSource
) -> None:
    """What the edit brings must be known there: a helper may not have been written yet."""
    new = Counter(t.text for t in made if t.name)
    new.subtract(t.text for t in theirs if t.name)
    for name, many in new.items():
        if many <= 0 or keyword.iskeyword(name) or hasattr(builtins, name):
            continue
        if not re.search(rf"\b{re.escape(name)}\b", source.text) and not _bound(name, made):
            raise Lost(f"it has no {name}")


def _bound(name: str, made: list[merging.Token]) -> bool:
    """Whether the edit itself makes the name, or takes it from something that has it."""
    texts = [t.text for t in made]
    return any(
        text == name and (texts[n + 1 : n + 2] == ["="] or texts[n - 1 : n] == ["."])
        for n, text in enumerate(texts)
    )


def _defined(place: Target, tree: SourceTree) -> bool:
    source = tree.read(place.module)
    return source is not None and bool(source.scopes(place.qualname))


def _same(target: Target, tree: SourceTree) -> list[Target]:
    return [target] if _defined(target, tree) else []


def _elsewhere(target: Target, tree: SourceTree) -> Iterator[Target]:
    """Definitions of that name, in that module first and in all others else."""
    name = target.qualname.rpartition(".")[2]
    if not name or name.startswith("__"):
        return
    own = list(_named(name, target.module, tree))
    own = [place for place in own if place != target]
    if own:
        yield from own
        return
    for module in searched(tree):
        if module != target.module:
            yield from _named(name, module, tree)


def _named(name: str, module: str, tree: SourceTree) -> Iterator[Target]:
    source = tree.read(module)
    if source is None or not re.search(rf"\b(def|class) {name}\b", source.text):
        return
    for qualname in source.definition_names():
        if qualname.rpartition(".")[2] == name:
            yield Target(module, qualname)


def _about(
    target: Target, sides: tuple[Scope, Scope], tree: SourceTree, only: str
) -> Iterator[Target]:
    """Functions that hold the words that stand around the edit, where its own is gone."""
    words = merging.words_around(sides[0][0], sides[1][0])
    if len(words) < FEW:
        return
    for module in [only] if only else searched(tree):
        source = tree.read(module)
        if source is None or not _holds(words, source.text):
            continue
        yield from (place for place in _innermost(source, words) if place != target)


def _innermost(source: ModuleSource, words: list[str]) -> list[Target]:
    """The functions that hold these words, without those that only hold such a function."""
    found: list[str] = []

    def look(scope: SgNode, prefix: str) -> bool:
        inside = False
        for one in definitions(scope):
            if _holds(words, one.text()):
                name = prefix + defined_name(one)
                deeper = look(undecorated(one), f"{name}.")
                if not deeper and is_function(one):
                    found.append(name)
                inside = True
        return inside

    look(source.root, "")
    return [Target(source.module, name) for name in dict.fromkeys(found)]


def is_function(scope: SgNode) -> bool:
    return undecorated(scope).kind() == "function_definition"


def _holds(words: list[str], text: str) -> bool:
    return sum(word in text for word in words) >= ABOUT * len(words)


def searched(tree: SourceTree) -> list[str]:
    return [name for name in tree.modules() if name.startswith(WHERE)]


def same_effect(one: Known, other: Known) -> bool:
    """Whether two toggles make the same of a release."""
    return one.texts.keys() == other.texts.keys() and all(
        [meaning(a) for a in pair] == [meaning(b) for b in other.texts[module]]
        for module, pair in one.texts.items()
    )
