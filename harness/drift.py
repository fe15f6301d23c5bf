"""The state of every toggle on every release, with SGLang's own reverts beside them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import PatchError
from harness.matching.known import FOUND_BY, Known
from harness.matching.states import Finding, State, find
from harness.patching import plan
from harness.patching.plan import Choice, Direction, make
from harness.registry.schema import Toggle
from harness.releases import upstream
from harness.releases.sources import SourceTree
from harness.remembered import code_of

# Who makes a finding here: this module, and what plans a patch.
APPLIED_BY = code_of(sys.modules[__name__], plan, versions=(FOUND_BY,))


@dataclass(frozen=True)
class Column:
    """One release: the state of each toggle, and whether each of its own reverts applies."""

    name: str
    findings: tuple[Finding, ...]
    upstream: dict[str, str]
    upstream_problems: dict[str, str]

    @property
    def states(self) -> dict[str, str]:
        return {finding.toggle.id: finding.state.value for finding in self.findings}

    @property
    def outside(self) -> set[str]:
        """Toggles that are absent by their ranges alone: the target itself is there."""
        return {f.toggle.id for f in self.findings if f.state is State.ABSENT and f.problem}

    @property
    def stale(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.state is State.STALE]


@dataclass(frozen=True)
class Drift:
    """The whole survey."""

    toggles: tuple[Toggle, ...]
    columns: list[Column]

    @property
    def stale(self) -> int:
        return sum(len(column.stale) for column in self.columns)

    def summary(self) -> str:
        states = [state for column in self.columns for state in column.states.values()]
        outside = sum(len(column.outside) for column in self.columns)
        some = f" ({outside} by a range's end alone: -)" if outside else ""
        counted = ", ".join(
            f"{states.count(s.value)} {s.value}{some if s is State.ABSENT else ''}" for s in State
        )
        broken = [s for column in self.columns for s in column.upstream.values()]
        own = f"; of upstream's {len(broken)}, {broken.count('broken')} broken" if broken else ""
        toggles = _count(len(self.toggles), "toggle")
        return f"{toggles} on {_count(len(self.columns), 'release')}: {counted}{own}"

    def as_data(self) -> dict[str, Any]:
        return {
            "releases": [
                {
                    "release": column.name,
                    "toggles": [
                        {
                            "id": finding.toggle.id,
                            "state": finding.state.value,
                            "problem": finding.problem,
                            "nearest": finding.nearest,
                        }
                        for finding in column.findings
                    ],
                    "upstream": [
                        {"id": number, "state": state, "problem": column.upstream_problems[number]}
                        for number, state in column.upstream.items()
                    ],
                }
                for column in self.columns
            ],
            "stale": self.stale,
        }


def applied(toggle: Toggle, tree: SourceTree) -> Finding:
    """The state of a toggle, tried out: one whose patch does not compile is stale as well."""
    finding = find(toggle, tree)
    direction = {State.FIXED: Direction.REVERT, State.BUGGY: Direction.ENABLE}.get(finding.state)
    if direction is not None:
        try:
            make([Choice(toggle, direction)], tree, str(tree.version))
        except PatchError as error:
            return replace(finding, state=State.STALE, problem=str(error))
    return finding


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def survey(toggles: list[Toggle], trees: list[SourceTree], named: bool = False) -> Drift:
    """The survey; where toggles were named, SGLang's own reverts of the same fixes alone."""
    numbers = {str(number) for toggle in toggles for number in toggle.upstream}
    known = Known("drift", applied, APPLIED_BY)
    columns = []
    for tree in trees:
        own = [r for r in upstream.registered(tree) if not named or r.name in numbers]
        columns.append(
            Column(
                tree.name,
                tuple(known.find(toggles, tree)),
                {revert.name: "broken" if revert.problem else "applies" for revert in own},
                {revert.name: revert.problem for revert in own},
            )
        )
    return Drift(tuple(toggles), columns)
