"""Which toggles may be meant on a release, and the search among them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import combinations

from harness.bisect.questions import Universe
from harness.errors import UnfixError
from harness.matching.states import Finding, State, find
from harness.patching import diffs
from harness.patching.plan import Choice, Direction, make
from harness.registry.catalogue import Catalogue
from harness.registry.schema import Toggle
from harness.releases.sources import SourceTree
from harness.store.bisect.values import Part

NEEDED = {Direction.REVERT: State.FIXED, Direction.ENABLE: State.BUGGY}
SIDES = {"fixed": Direction.ENABLE, "buggy": Direction.REVERT}  # how to get to what is held


@dataclass(frozen=True)
class Candidates:
    """The toggles of one part of a search, and what is held beside them."""

    direction: Direction
    findings: dict[str, Finding]
    universe: Universe
    left_out: dict[str, str]
    held: tuple[tuple[str, Direction], ...]
    tree: SourceTree

    def without(self, refused: dict[str, str]) -> Candidates:
        """The same with some left out."""
        universe = Universe(
            tuple(name for name in self.universe.toggles if name not in refused),
            frozenset(pair for pair in self.universe.conflicts if not pair & set(refused)),
        )
        return replace(self, universe=universe, left_out={**self.left_out, **refused})

    def choices(self, toggles: frozenset[str]) -> tuple[tuple[str, Direction], ...]:
        asked = tuple((name, self.direction) for name in self.universe.ordered(toggles))
        return asked + self.held

    def part(self, name: str, where: str) -> Part:
        return Part(
            name=name,
            where=where,
            direction=self.direction.value,
            toggles=list(self.universe.toggles),
            left_out=self.left_out,
            conflicts=sorted(sorted(pair) for pair in self.universe.conflicts),
        )

    def patch(self, name: str) -> str:
        return diffs.of(self.findings[name], self.tree)


def held_choices(
    held: dict[str, str], known: Catalogue, tree: SourceTree
) -> tuple[tuple[str, Direction], ...]:
    """What must be done to a release so that these toggles are as they are held."""
    toggles = {toggle.id: toggle for toggle in known}
    found = []
    for name, side in held.items():
        finding = find(toggles[name], tree)
        if finding.state is State.STALE:
            raise UnfixError(f"{name} cannot be held {side}: it is stale here: {finding.problem}")
        there = {State.FIXED: "fixed", State.BUGGY: "buggy"}.get(finding.state)
        if there is not None and there != side:
            found.append((name, SIDES[side]))
    return tuple(found)


def candidates(
    toggles: list[Toggle],
    direction: Direction,
    tree: SourceTree,
    known: Catalogue,
    held: dict[str, str],
) -> Candidates:
    """Those of the toggles that apply, which of them clash, and why the others are left out."""
    held_here = held_choices(held, known, tree)
    by_id = {toggle.id: toggle for toggle in known}
    beside = [Choice(by_id[name], way) for name, way in held_here]
    findings: dict[str, Finding] = {}
    left_out: dict[str, str] = {}
    for toggle in toggles:
        finding = find(toggle, tree)
        if toggle.id in held:
            left_out[toggle.id] = f"held {held[toggle.id]}"
        elif finding.state is not NEEDED[direction]:
            left_out[toggle.id] = {
                State.FIXED: "the fix is in already",
                State.BUGGY: "the fix is not in",
                State.ABSENT: "not in this release",
                State.STALE: f"stale: {finding.problem}",
            }[finding.state]
        elif beside and _clash([Choice(toggle, direction), *beside], tree):
            left_out[toggle.id] = "it changes the same code as what is held"
        else:
            findings[toggle.id] = finding
    conflicts = _conflicts(findings, direction, tree)
    universe = Universe(tuple(findings), conflicts)
    return Candidates(direction, findings, universe, left_out, held_here, tree)


def _conflicts(
    findings: dict[str, Finding], direction: Direction, tree: SourceTree
) -> frozenset[frozenset[str]]:
    """Pairs that cannot be in together; only those of one module can be."""
    by_module: dict[str, set[str]] = defaultdict(set)
    for name, finding in findings.items():
        for site in finding.sites:
            by_module[site.source.module].add(name)
    pairs = {frozenset(pair) for names in by_module.values() for pair in combinations(names, 2)}
    return frozenset(
        pair
        for pair in pairs
        if _clash([Choice(findings[name].toggle, direction) for name in sorted(pair)], tree)
    )


def _clash(choices: list[Choice], tree: SourceTree) -> bool:
    try:
        make(choices, tree, "")
    except UnfixError:
        return True
    return False
