"""The toggles that a search may blame on a release, and the conflicts among them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import combinations

from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus, find_toggle_status
from harness.fixes.patch_plan import Direction, ToggleChoice, format_toggle_diff, make_plan
from harness.fixes.registry.schema import Toggle
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.releases.source_trees import SourceTree
from harness.runs.bisect.search_questions import ToggleUniverse
from harness.store.bisect.values import ToggleSearch

NEEDED_STATE = {Direction.REVERT: ToggleState.FIXED, Direction.ENABLE: ToggleState.BUGGY}
DIRECTION_BY_SIDE = {
    "applied": Direction.ENABLE,
    "reverted": Direction.REVERT,
}  # the direction that brings a toggle to its pinned side


@dataclass(frozen=True)
class ToggleCandidates:
    """The toggles of one search, and those pinned in each of its runs."""

    direction: Direction
    findings: dict[str, ToggleStatus]
    universe: ToggleUniverse
    left_out: dict[str, str]
    pinned_choices: tuple[tuple[str, Direction], ...]
    tree: SourceTree

    def drop_refused(self, refused: dict[str, str]) -> ToggleCandidates:
        """Return the candidates without the refused ones."""
        universe = ToggleUniverse(
            tuple(name for name in self.universe.toggles if name not in refused),
            frozenset(pair for pair in self.universe.conflicts if not pair & set(refused)),
        )
        return replace(self, universe=universe, left_out={**self.left_out, **refused})

    def make_choices(self, toggles: frozenset[str]) -> tuple[tuple[str, Direction], ...]:
        choices = tuple((name, self.direction) for name in self.universe.sort_toggles(toggles))
        return choices + self.pinned_choices

    def make_toggle_search(self, name: str, where: str) -> ToggleSearch:
        return ToggleSearch(
            name=name,
            where=where,
            direction=self.direction.value,
            toggles=list(self.universe.toggles),
            left_out=self.left_out,
            conflicts=sorted(sorted(pair) for pair in self.universe.conflicts),
        )

    def format_patch(self, name: str) -> str:
        return format_toggle_diff(self.findings[name], self.tree)


def resolve_pinned_choices(
    pinned_toggles: dict[str, str], catalogue: ToggleCatalogue, tree: SourceTree
) -> tuple[tuple[str, Direction], ...]:
    """Resolve the changes to a release that bring the pinned toggles to their sides."""
    toggles = {toggle.id: toggle for toggle in catalogue}
    choices = []
    for name, side in pinned_toggles.items():
        finding = find_toggle_status(toggles[name], tree)
        if finding.state is ToggleState.STALE:
            raise UnfixError(f"{name} cannot be held {side}: it is stale here: {finding.problem}")
        direction = DIRECTION_BY_SIDE[side]
        if finding.state is NEEDED_STATE[direction]:
            choices.append((name, direction))
    return tuple(choices)


def select_candidates(
    toggles: list[Toggle],
    direction: Direction,
    tree: SourceTree,
    catalogue: ToggleCatalogue,
    pinned_toggles: dict[str, str],
) -> ToggleCandidates:
    """Select the toggles that apply, with their conflicts and the reasons against the others."""
    pinned_choices = resolve_pinned_choices(pinned_toggles, catalogue, tree)
    by_id = {toggle.id: toggle for toggle in catalogue}
    pinned = [ToggleChoice(by_id[name], way) for name, way in pinned_choices]
    findings: dict[str, ToggleStatus] = {}
    left_out: dict[str, str] = {}
    for toggle in toggles:
        finding = find_toggle_status(toggle, tree)
        if toggle.id in pinned_toggles:
            left_out[toggle.id] = f"held {pinned_toggles[toggle.id]}"
        elif finding.state is not NEEDED_STATE[direction]:
            left_out[toggle.id] = {
                ToggleState.FIXED: "the fix is in already",
                ToggleState.BUGGY: "the fix is not in",
                ToggleState.ABSENT: "not in this release",
                ToggleState.STALE: f"stale: {finding.problem}",
            }[finding.state]
        elif pinned and _has_conflict([ToggleChoice(toggle, direction), *pinned], tree):
            left_out[toggle.id] = "it changes the same code as what is held"
        else:
            findings[toggle.id] = finding
    conflicts = _find_conflicts(findings, direction, tree)
    universe = ToggleUniverse(tuple(findings), conflicts)
    return ToggleCandidates(direction, findings, universe, left_out, pinned_choices, tree)


def _find_conflicts(
    findings: dict[str, ToggleStatus], direction: Direction, tree: SourceTree
) -> frozenset[frozenset[str]]:
    """Find the pairs that cannot be combined: both change the same code of one module."""
    by_module: dict[str, set[str]] = defaultdict(set)
    for name, finding in findings.items():
        for site in finding.sites:
            by_module[site.source.module].add(name)
    pairs = {frozenset(pair) for names in by_module.values() for pair in combinations(names, 2)}
    return frozenset(
        pair
        for pair in pairs
        if _has_conflict(
            [ToggleChoice(findings[name].toggle, direction) for name in sorted(pair)], tree
        )
    )


def _has_conflict(choices: list[ToggleChoice], tree: SourceTree) -> bool:
    try:
        make_plan(choices, tree, "")
    except UnfixError:
        return True
    return False
