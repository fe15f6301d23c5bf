"""Ports the edits of a toggle to another release whose code has changed.

The unchanged forms are tried first. Otherwise the definition is searched in its module, by its
name in other modules, and by the words around the edit, and the edit is merged there by tokens.

Invariant: the result is unique. If two definitions accept the edit, or one accepts it in both
directions, nothing is ported. Example: `width = rows * topk` fixed to `width = rows`; a release
with `width = max_rows * topk` gets `width = max_rows`, and the rename `rows` -> `max_rows` counts
against the similarity of the definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from harness.core.cpp_scopes import CppSource
from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError
from harness.fixes.adopt import cpp_lines, inlining, local_imports, token_merge
from harness.fixes.adopt.code_tokens import PortError, render_tokens
from harness.fixes.adopt.definition_search import (
    find_by_name,
    find_by_words,
    find_in_place,
    was_defined,
)
from harness.fixes.adopt.module_diff import dump_syntax
from harness.fixes.adopt.scope_text import (
    ScopeTokens,
    compare_texts,
    find_unknown_names,
    locate_scope,
    make_source,
    tokenize_scope,
)
from harness.fixes.adopt.token_merge import DuplicateTargetError, MergedEdit
from harness.fixes.matching.toggle_status import ToggleState, locate_edit
from harness.fixes.patch_plan import FLIP_DIRECTIONS, ToggleChoice, make_plan
from harness.fixes.registry.schema import (
    CodeTarget,
    DeviceKind,
    Symptom,
    Toggle,
    ToggleEdit,
    ToggleVariant,
)
from harness.releases.source_trees import SourceTree

MIN_SIMILARITY_MOVED = 0.6  # share of equal tokens: the same definition in another module
MIN_SIMILARITY_RENAMED = 0.25  # another name or another class
MIN_SIMILARITY_SAME_NAME = 0.4  # another definition of that name in another module


@dataclass(frozen=True)
class ResolvedEdits:
    """The edits of a toggle on a release where they match, with both texts of each module."""

    tree: SourceTree
    state: ToggleState
    edits: tuple[ToggleEdit, ...]  # each with its target
    texts: dict[str, tuple[str, str]]  # module: with the fix, without it
    remarks: tuple[str, ...] = ()

    def list_targets(self) -> list[CodeTarget]:
        return list(dict.fromkeys(CodeTarget.parse(edit.target or "") for edit in self.edits))


def make_trial_toggle(edits: Iterable[ToggleEdit]) -> Toggle:
    """Make a temporary toggle with these edits, for any release."""
    variant = ToggleVariant(releases="!=0", edits=tuple(edits))
    return Toggle(
        id="trial",
        title="trial",
        family="trial",
        symptom=Symptom.CRASH,
        devices=(DeviceKind.CPU,),
        variants=(variant,),
    )


def resolve_edits(
    edits: Iterable[ToggleEdit], tree: SourceTree, remarks: tuple[str, ...] = ()
) -> ResolvedEdits | None:
    """Resolve edits on a release; None if they do not match or cannot be applied."""
    toggle = make_trial_toggle(edits)
    state = find_state(toggle, tree)
    if state not in FLIP_DIRECTIONS:
        return None
    try:
        plan = make_plan([ToggleChoice(toggle, FLIP_DIRECTIONS[state])], tree, str(tree.version))
    except UnfixError:
        return None
    texts = {}
    for module in plan.modules:
        source = tree.read(module.module)
        assert source is not None
        pair = (source.text, module.text)
        texts[module.module] = pair if state is ToggleState.FIXED else (pair[1], pair[0])
    return ResolvedEdits(tree, state, toggle.variants[0].edits, texts, remarks)


def find_state(toggle: Toggle, tree: SourceTree) -> ToggleState:
    """Find the state of a toggle, without the slow search for the nearest source."""
    states = set()
    for edit in toggle.variants[0].edits:
        site = locate_edit(edit, toggle.variants[0].get_target(edit), tree)
        if isinstance(site, str):
            return ToggleState.STALE
        states.add(site.state)
    return states.pop() if len(states) == 1 else ToggleState.STALE


def port_edits(origin: ResolvedEdits, tree: SourceTree) -> ResolvedEdits | str:
    """Port the edits to another release, or return the reason why that is impossible."""
    unchanged = resolve_edits(origin.edits, tree)
    missing_name = find_missing_name(unchanged) if unchanged is not None else ""
    if unchanged is not None and not missing_name:
        turns_buggy = unchanged.state is ToggleState.BUGGY and origin.state is ToggleState.FIXED
        return (explain_fix_present(origin, tree) if turns_buggy else "") or unchanged
    try:
        ported_targets = [_port_target(target, origin, tree) for target in origin.list_targets()]
    except PortError as error:
        return missing_name or str(error)
    states = {ported.state for ported in ported_targets}
    if len(states) > 1:
        return "its places disagree: some are fixed there and some are not"
    edits: list[ToggleEdit] = []
    remarks: list[str] = []
    texts: dict[str, tuple[str, str]] = {}
    for ported in ported_targets:
        module = ported.target.module
        source = tree.read(module)
        assert source is not None
        base = texts.get(module, (source.text, source.text))[1]
        texts[module] = (source.text, _replace_scope(base, ported))
        remarks.append(ported.remark)
    for module, (text, other) in texts.items():
        pair = (text, other) if ported_targets[0].state is ToggleState.FIXED else (other, text)
        spans, unresolved = compare_texts(module, *pair).build_edits()
        if unresolved:
            return f"no pair of forms tells the edit from the rest of {module}"
        edits += [span.edit for span in spans]
    result = resolve_edits(edits, tree, tuple(dict.fromkeys(remarks)))
    if result is None or result.state is not ported_targets[0].state:
        return "the forms that were made for it do not hold"
    return result


def find_missing_name(resolved: ResolvedEdits) -> str:
    """Find a name that the fix uses and its module does not define; '' if there is none."""
    if resolved.state is ToggleState.FIXED:
        return ""
    for target in resolved.list_targets():
        fixed, buggy = (make_source(target.module, t) for t in resolved.texts[target.module])
        fixed_tokens, buggy_tokens = (
            tokenize_scope(source, target.qualname)[0] for source in (fixed, buggy)
        )
        for name in find_unknown_names(fixed_tokens, buggy_tokens, buggy, resolved.tree):
            return f"{target}: it has no {name}"
    return ""


def add_missing_imports(
    resolved: ResolvedEdits, texts: Mapping[str, tuple[str, str]]
) -> ResolvedEdits | str:
    """Add the imports that an absent fix needs, copied from these texts."""
    edits: list[ToggleEdit] = []
    for module, (fixed, buggy) in resolved.texts.items():
        for target in (one for one in resolved.list_targets() if one.module == module):
            fixed_tokens, indent, start, end = tokenize_scope(
                make_source(module, fixed), target.qualname
            )
            source = make_source(module, buggy)
            buggy_tokens = tokenize_scope(source, target.qualname)[0]
            names = find_unknown_names(fixed_tokens, buggy_tokens, source, resolved.tree)
            if names and is_cpp_path(module):
                return f"{target}: it has no {names[0]}"
            if names:
                try:
                    fixed_tokens = local_imports.insert_imports(
                        fixed_tokens, names, texts[module][0], source, resolved.tree
                    )
                except PortError as error:
                    return f"{target}: {error}"
                fixed = fixed[:start] + render_tokens(fixed_tokens, indent) + fixed[end:]
        edits += [one.edit for one in compare_texts(module, fixed, buggy).build_edits()[0]]
    return (
        resolve_edits(edits, resolved.tree) or "its imports cannot be separated from the rest of it"
    )


def explain_fix_present(origin: ResolvedEdits, tree: SourceTree) -> str:
    """Explain why a buggy form is no bug: a separate line of the release already has the fix."""
    for target in origin.list_targets():
        source = tree.read(target.module)
        assert source is not None
        fixed, buggy = (tokenize_scope(make_source(target.module, text), target.qualname)[0]
                        for text in origin.texts[target.module])  # fmt: skip
        if token_merge.has_edit_already(buggy, fixed, tokenize_scope(source, target.qualname)[0]):
            return f"{target}: its buggy form is there, and so is what the fix puts in"
    return ""


@dataclass(frozen=True)
class PortedTarget:
    """A target on another release, with the edit applied."""

    target: CodeTarget
    state: ToggleState
    start: int
    end: int
    text: str
    remark: str
    is_unchanged: bool  # all tokens but names are the same: the definition has only moved


def _replace_scope(text: str, ported: PortedTarget) -> str:
    source = make_source(ported.target.module, text)
    (scope,) = source.find_scopes(ported.target.qualname)
    start, end = locate_scope(source, scope)
    return text[:start] + ported.text + text[end:]


def _port_target(target: CodeTarget, origin: ResolvedEdits, tree: SourceTree) -> PortedTarget:
    """Find the only definition of the release that accepts the edit of this target."""
    sides = [tokenize_scope(make_source(target.module, text), target.qualname)
             for text in origin.texts[target.module]]  # fmt: skip
    if not is_cpp_path(target.module):
        sides[0] = (local_imports.drop_own_imports(sides[0][0], sides[1][0]), *sides[0][1:])
    plain = (sides[0], sides[1])
    inlined = _inline_target(target, origin, sides)
    in_place = find_in_place(target, tree)
    places_by_name = in_place or list(find_by_name(target, tree))
    stages: list[tuple[Iterable[CodeTarget], tuple[ScopeTokens, ScopeTokens]]] = [
        (places_by_name, plain)
    ]
    if inlined is not None:
        stages.append((places_by_name, inlined))
    words = token_merge.find_words_around(plain[0][0], plain[1][0])
    stages.append((find_by_words(target, words, tree, target.module if in_place else ""), plain))
    reasons: list[str] = []
    for places, texts in stages:
        found: list[PortedTarget] = []
        for place in places:
            if place != target and was_defined(place, words, origin.tree):
                continue  # defined there before, so not a moved target
            try:
                found.append(_port_to_candidate(texts, target, place, tree, origin))
            except DuplicateTargetError:
                raise
            except PortError as error:
                reasons.append(f"{place}: {error}")
        if len(found) > 1:
            found = _drop_namesakes(found, target, origin.tree)
            found = [ported for ported in found if ported.is_unchanged] or found
        if len(found) == 1:
            return found[0]
        if found:
            raise PortError(
                f"{len(found)} places take it: {', '.join(str(place.target) for place in found)}"
            )
    raise PortError(reasons[0] if reasons else f"nothing there is like {target}")


def _drop_namesakes(
    candidates: list[PortedTarget], target: CodeTarget, tree: SourceTree
) -> list[PortedTarget]:
    """Drop candidates in packages where only another definition of this name was before."""
    other_parts = {part for twin in find_by_name(target, tree) for part in twin.module.split(".")}
    foreign_parts = other_parts - set(target.module.split("."))
    return [
        candidate
        for candidate in candidates
        if foreign_parts.isdisjoint(candidate.target.module.split("."))
    ]


def _inline_target(
    target: CodeTarget, origin: ResolvedEdits, sides: list[ScopeTokens]
) -> tuple[ScopeTokens, ScopeTokens] | None:
    """Inline the helpers of the edit in both texts; None if it has none, or is C++."""
    if is_cpp_path(target.module):
        return None
    names = token_merge.find_names_in_edit(sides[0][0], sides[1][0])
    plain_sides: list[ScopeTokens] = []
    for text, (found, indent, start, end) in zip(origin.texts[target.module], sides, strict=True):
        plain = inlining.inline_helpers(found, names, target.module, text, origin.tree)
        for name in names:
            plain = inlining.inline_local(plain, name)
        plain_sides.append((plain, indent, start, end))
    plain_sides[1] = (
        inlining.drop_int32_casts(plain_sides[0][0], plain_sides[1][0]),
        *plain_sides[1][1:],
    )
    if all(one[0] == side[0] for one, side in zip(plain_sides, sides, strict=True)):
        return None
    return plain_sides[0], plain_sides[1]


def _port_to_candidate(
    texts: tuple[ScopeTokens, ScopeTokens],
    target: CodeTarget,
    candidate: CodeTarget,
    tree: SourceTree,
    origin: ResolvedEdits,
) -> PortedTarget:
    fixed, buggy = texts
    is_elsewhere = candidate != target
    is_newer = bool(tree.version and origin.tree.version and tree.version > origin.tree.version)
    source = tree.read(candidate.module)
    if source is None:
        raise PortError("there is no such module")
    candidate_tokens, indent, start, end = tokenize_scope(source, candidate.qualname)
    results: list[tuple[ToggleState, MergedEdit]] = []
    reasons: list[str] = []
    for side, before, after in (
        (ToggleState.FIXED, fixed, buggy),
        (ToggleState.BUGGY, buggy, fixed),
    ):
        try:
            merged = token_merge.merge_edit(before[0], after[0], candidate_tokens)
            names = find_unknown_names(merged.tokens, candidate_tokens, source, tree)
            if names and (side is ToggleState.FIXED or isinstance(source, CppSource)):
                raise PortError(f"it has no {names[0]}")
            if names:
                text = origin.texts[target.module][0]
                tokens_with_imports = local_imports.insert_imports(
                    merged.tokens, names, text, source, tree
                )
                merged = replace(merged, tokens=tokens_with_imports, imported_names=tuple(names))
            results.append((side, merged))
        except DuplicateTargetError:
            raise
        except PortError as error:
            reasons.append(str(error))
    if not results:
        raise PortError(reasons[0 if origin.state is ToggleState.FIXED else 1])
    if len(results) > 1:  # the only exact one
        exact = [result for result in results if not result[1].is_inexact]
        if len(exact) != 1:
            raise PortError("the edit fits both ways")
        results = exact
    side, merged = results[0]
    if is_newer and side is ToggleState.BUGGY and merged.is_inexact:
        raise PortError("the code there has changed since: it may be fixed in another way")
    is_same_definition = (
        candidate.qualname == target.qualname and merged.similarity >= MIN_SIMILARITY_MOVED
    )
    if is_elsewhere and merged.is_inexact and not is_same_definition:
        raise PortError("it is not word for word what it was")
    if is_elsewhere and merged.similarity < (
        MIN_SIMILARITY_SAME_NAME
        if candidate.qualname == target.qualname
        else MIN_SIMILARITY_RENAMED
    ):
        raise PortError("it is too little like what it was")
    remark = f"{candidate}: {merged.similarity:.0%} of the code around it is there"
    if is_elsewhere:
        remark = f"{target} is {remark}"
    if merged.renames:
        remark += ", ".join(["", *(f"{a} is {b}" for a, b in merged.renames.items())])
    if merged.is_inexact:
        remark += ", the code that it removes differs"
    if merged.missing_count:
        remark += f", {merged.missing_count} of its places alike are not there"
    if merged.imported_names:
        remark += f", it imports {', '.join(merged.imported_names)} itself"
    if isinstance(source, CppSource):
        text = cpp_lines.render_tokens(merged.tokens)
    else:
        text = render_tokens(merged.tokens, indent)
    before = fixed if side is ToggleState.FIXED else buggy
    is_unchanged = merged.similarity == 1 and len(before[0]) == len(candidate_tokens)
    return PortedTarget(candidate, side, start, end, text, remark, is_unchanged)


def has_same_effect(first: ResolvedEdits, second: ResolvedEdits) -> bool:
    """Return whether two sets of edits produce the same code."""
    return first.texts.keys() == second.texts.keys() and all(
        [dump(a) for a in pair] == [dump(b) for b in second.texts[module]]
        for module, pair in first.texts.items()
        for dump in (cpp_lines.normalize_text if is_cpp_path(module) else dump_syntax,)
    )
