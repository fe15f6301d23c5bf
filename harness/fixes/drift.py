"""The state of every toggle on every release, with SGLang's own reverts beside them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from harness.core.cache import compute_code_digest
from harness.core.errors import PatchError
from harness.core.wording import format_count
from harness.fixes.matching.status_cache import MATCHING_CODE_DIGEST, StatusCache
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus, find_toggle_status
from harness.fixes.registry.schema import Toggle
from harness.patching import patch_plan
from harness.patching.patch_plan import Direction, ToggleChoice, make_plan
from harness.releases import upstream_reverts
from harness.releases.source_trees import SourceTree

# Who makes a finding here: this module, and what plans a patch.
SURVEY_CODE_DIGEST = compute_code_digest(
    sys.modules[__name__], patch_plan, versions=(MATCHING_CODE_DIGEST,)
)


@dataclass(frozen=True)
class ReleaseDrift:
    """One release: the state of each toggle, and whether each of its own reverts applies."""

    name: str
    statuses: tuple[ToggleStatus, ...]
    upstream_states: dict[str, str]
    upstream_problems: dict[str, str]

    @property
    def states(self) -> dict[str, str]:
        return {finding.toggle.id: finding.state.value for finding in self.statuses}

    @property
    def out_of_range(self) -> set[str]:
        """Toggles that are absent by their ranges alone: the target itself is there."""
        return {f.toggle.id for f in self.statuses if f.state is ToggleState.ABSENT and f.problem}

    @property
    def stale(self) -> list[ToggleStatus]:
        return [finding for finding in self.statuses if finding.state is ToggleState.STALE]


@dataclass(frozen=True)
class DriftSurvey:
    """The whole survey."""

    toggles: tuple[Toggle, ...]
    releases: list[ReleaseDrift]

    @property
    def stale_count(self) -> int:
        return sum(len(column.stale) for column in self.releases)

    def describe(self) -> str:
        states = [state for column in self.releases for state in column.states.values()]
        outside = sum(len(column.out_of_range) for column in self.releases)
        some = f" ({outside} by a range's end alone: -)" if outside else ""
        counted = ", ".join(
            f"{states.count(s.value)} {s.value}{some if s is ToggleState.ABSENT else ''}"
            for s in ToggleState
        )
        broken = [s for column in self.releases for s in column.upstream_states.values()]
        own = f"; of upstream's {len(broken)}, {broken.count('broken')} broken" if broken else ""
        toggles = format_count(len(self.toggles), "toggle")
        return f"{toggles} on {format_count(len(self.releases), 'release')}: {counted}{own}"

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
                        for finding in column.statuses
                    ],
                    "upstream": [
                        {"id": number, "state": state, "problem": column.upstream_problems[number]}
                        for number, state in column.upstream_states.items()
                    ],
                }
                for column in self.releases
            ],
            "stale": self.stale_count,
        }


def verify_toggle_status(toggle: Toggle, tree: SourceTree) -> ToggleStatus:
    """The state of a toggle, tried out: one whose patch does not compile is stale as well."""
    finding = find_toggle_status(toggle, tree)
    direction = {ToggleState.FIXED: Direction.REVERT, ToggleState.BUGGY: Direction.ENABLE}.get(
        finding.state
    )
    if direction is not None:
        try:
            make_plan([ToggleChoice(toggle, direction)], tree, str(tree.version))
        except PatchError as error:
            return replace(finding, state=ToggleState.STALE, problem=str(error))
    return finding


def survey_drift(
    toggles: list[Toggle], trees: list[SourceTree], only_named: bool = False
) -> DriftSurvey:
    """The survey; where toggles were named, SGLang's own reverts of the same fixes alone."""
    numbers = {str(number) for toggle in toggles for number in toggle.upstream}
    known = StatusCache("drift", verify_toggle_status, SURVEY_CODE_DIGEST)
    columns = []
    for tree in trees:
        own = [
            r
            for r in upstream_reverts.read_upstream_reverts(tree)
            if not only_named or r.name in numbers
        ]
        columns.append(
            ReleaseDrift(
                tree.name,
                tuple(known.find_statuses(toggles, tree)),
                {revert.name: "broken" if revert.problem else "applies" for revert in own},
                {revert.name: revert.problem for revert in own},
            )
        )
    return DriftSurvey(tuple(toggles), columns)
