"""Splits a fix into independent parts, and builds a toggle from each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError
from harness.core.source_scopes import ModuleSource
from harness.fixes.adopt import release_timeline
from harness.fixes.adopt.anchors import FixAnchor, LeftOutChange
from harness.fixes.adopt.edit_porting import add_missing_imports, find_missing_name, resolve_edits
from harness.fixes.adopt.fix_diff import RUNTIME_MODULE
from harness.fixes.adopt.module_diff import ModuleDiff, NodeDifference, find_qualname
from harness.fixes.adopt.release_timeline import EditTimeline
from harness.fixes.adopt.rename_detection import undo_renames
from harness.fixes.adopt.scope_text import compare_texts
from harness.fixes.adopt.text_diff import EditSpan
from harness.fixes.matching.toggle_status import ToggleState
from harness.fixes.registry.schema import CodeTarget, DeviceKind, Symptom, Toggle, ToggleEdit
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.releases.source_trees import SourceTree

LAYOUT_ONLY = "comments or layout alone"
NO_FORMS = "no pair of forms of a few lines tells it from the rest of its scope"


@dataclass(frozen=True)
class FixDescription:
    """The description of a fix that its author gives."""

    id: str
    title: str
    symptom: Symptom
    family: str = ""
    upstream: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class AdoptedToggle:
    """One toggle of a fix, with its edits on each release."""

    toggle: Toggle
    timeline: EditTimeline


@dataclass(frozen=True)
class FixPart:
    """Edits that belong together."""

    name: str
    edits: tuple[ToggleEdit, ...]


def split_fix(anchor: FixAnchor, as_one: bool = False) -> tuple[list[FixPart], list[LeftOutChange]]:
    """Split a fix into independent parts, and changes that belong to none."""
    spans: list[EditSpan] = []
    left_out: list[LeftOutChange] = []
    for module, (fixed, buggy) in anchor.texts.items():
        if not is_cpp_path(module):
            buggy, renamed = undo_renames(fixed, buggy)
            left_out += [LeftOutChange(f"{module}:{rename}", "a name alone") for rename in renamed]
        diff = compare_texts(module, fixed, buggy)
        if not diff.differences:
            left_out.append(LeftOutChange(module, LAYOUT_ONLY))
        left_out += diff.drop_inert_differences()
        found, unresolved = diff.build_edits()
        spans += found
        left_out += [
            LeftOutChange(diff.describe(difference), NO_FORMS) for difference in unresolved
        ]
    if not spans:
        reasons = "; ".join(f"{change.change}: {change.reason}" for change in left_out)
        raise UnfixError(f"nothing of it can be a toggle: {reasons}")
    groups = [spans] if as_one else _group_edits(spans, anchor.texts)
    named = [FixPart(_make_slug(group), tuple(span.edit for span in group)) for group in groups]
    return named, left_out


def _group_edits(
    edit_spans: Sequence[EditSpan], texts: Mapping[str, tuple[str, str]]
) -> list[list[EditSpan]]:
    """Group edits of one function, and edits that share a name which the fix adds or removes."""
    groups: list[tuple[set[str], list[EditSpan]]] = []
    for span in edit_spans:
        pair = texts[CodeTarget.parse(span.edit.target or "").module]
        names = {f"@{span.edit.target}"} | _find_changed_names(span.edit, pair)
        connected_groups = [group for group in groups if group[0] & names]
        for group in connected_groups:
            names |= group[0]
        members = [member for group in connected_groups for member in group[1]] + [span]
        groups = [group for group in groups if group not in connected_groups] + [(names, members)]
    order = {id(span): number for number, span in enumerate(edit_spans)}
    sorted_groups = [sorted(members, key=lambda t: order[id(t)]) for _, members in groups]
    return sorted(sorted_groups, key=lambda members: order[id(members[0])])


def _find_changed_names(edit: ToggleEdit, texts: tuple[str, str]) -> set[str]:
    """Find the names in an edit that only one of the module's two texts contains."""
    mine, its = (set(re.findall(r"[A-Za-z_]\w{3,}", side)) for side in (edit.fixed, edit.buggy))
    fixed, buggy = (set(re.findall(r"[A-Za-z_]\w{3,}", text)) for text in texts)
    return (mine - its - buggy) | (its - mine - fixed)


def _make_slug(group: Sequence[EditSpan]) -> str:
    target = CodeTarget.parse(group[0].edit.target or "")
    module = target.module
    name = Path(module).stem if is_cpp_path(module) else module.rpartition(".")[2]
    word = target.qualname.rpartition(".")[2] or name
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")


def adopt_part(
    part: FixPart,
    anchor: FixAnchor,
    description: FixDescription,
    trees: Sequence[SourceTree],
    registry: ToggleCatalogue,
    report: Callable[[int], object] = lambda done: None,
) -> AdoptedToggle:
    """Build a toggle from a part of a fix, with its edits on every release."""
    resolved = resolve_edits(part.edits, anchor.tree)
    if resolved is None:
        raise UnfixError(f"{part.name}: its edits do not apply together to {anchor.tree.name}")
    if find_missing_name(resolved):
        needed = add_missing_imports(resolved, anchor.texts)
        if isinstance(needed, str):
            raise UnfixError(f"{part.name}: {needed}")
        resolved = needed
    run = release_timeline.trace_edits(resolved, trees, report)
    variants = release_timeline.build_variants(run)
    if not variants:
        raise UnfixError(
            f"{part.name}: no release has this code yet, so a toggle has nowhere to apply"
        )
    targets = list(dict.fromkeys(target for variant in variants for target in variant.targets))
    toggle = Toggle(
        id=description.id,
        title=description.title,
        family=description.family or registry.guess_family(targets),
        symptom=description.symptom,
        devices=(DeviceKind.CPU, DeviceKind.CUDA),
        variants=variants,
        upstream=description.upstream,
        why=description.why,
    )
    return AdoptedToggle(toggle, run)


@dataclass(frozen=True)
class ReleaseChange:
    """One difference between two releases."""

    module: str
    name: str  # the definition that contains it
    difference: NodeDifference
    newer_text: str
    older_text: str


def find_release_changes(
    older: SourceTree,
    newer: SourceTree,
    words: Sequence[str],
    report: Callable[[int], object] = lambda done: None,
) -> list[ReleaseChange]:
    """Find the differences of two releases in modules or definitions named by all words.

    `report` gets the number of modules that were read.
    """
    found = []
    for number, module in enumerate(newer.modules()):
        report(number)
        after = (
            newer.read(module) if RUNTIME_MODULE.match(f"{module.replace('.', '/')}.py") else None
        )
        if after is None or not all(word in module or word in after.text for word in words):
            continue
        before = older.read(module) or _find_moved_module(module, older, newer)
        if before is None or before.text == after.text:
            continue
        for place in ModuleDiff(module, after.text, before.text).differences:
            name = find_qualname((place.fixed or place.buggy)[0])
            if all(word in f"{module}:{name}" for word in words):
                found.append(ReleaseChange(module, name, place, after.text, before.text))
    return found


def _find_moved_module(module: str, older: SourceTree, newer: SourceTree) -> ModuleSource | None:
    """Find the former module of a moved one: the only removed one with the same last name."""
    name = module.rpartition(".")[2]
    gone = [m for m in older.modules() if m.rpartition(".")[2] == name and newer.read(m) is None]
    return older.read(gone[0]) if len(gone) == 1 else None


def make_anchor_from_changes(changes: Sequence[ReleaseChange], newer: SourceTree) -> FixAnchor:
    """Make an anchor whose fix is these differences: the newer release's text with and without."""
    texts: dict[str, tuple[str, str]] = {}
    for change in sorted(changes, key=lambda one: -one.difference.locate_in_fixed()[0]):
        text = texts.get(change.module, (change.newer_text, change.newer_text))[1]
        texts[change.module] = (
            change.newer_text,
            change.difference.revert(text, change.older_text),
        )
    return FixAnchor(newer, ToggleState.FIXED, texts, ())


def render_difference(difference: NodeDifference) -> str:
    """Render a difference as removed and added lines."""
    sides = [
        "\n".join(n.text() for n in nodes).split("\n")
        for nodes in (difference.buggy, difference.fixed)
    ]
    lines = difflib.unified_diff(sides[0], sides[1], lineterm="", n=1)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
