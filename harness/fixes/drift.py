"""The drift survey: the status of every toggle on every release, and of SGLang's own reverts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from harness.core.errors import PatchError
from harness.core.wording import format_count
from harness.fixes.matching.status_cache import StatusCache
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus, find_toggle_status
from harness.fixes.patch_plan import FLIP_DIRECTIONS, ToggleChoice, make_plan
from harness.fixes.registry.schema import Toggle
from harness.releases import upstream_reverts
from harness.releases.source_trees import SourceTree


@dataclass(frozen=True)
class ReleaseDrift:
    """One release: the status of each toggle, and whether each of SGLang's own reverts applies."""

    name: str
    statuses: tuple[ToggleStatus, ...]
    upstream_states: dict[str, str]
    upstream_problems: dict[str, str]

    @property
    def states(self) -> dict[str, str]:
        return {status.toggle.id: status.state.value for status in self.statuses}

    @property
    def out_of_range(self) -> set[str]:
        """Toggles whose range excludes the release although the target exists there."""
        return {s.toggle.id for s in self.statuses if s.state is ToggleState.ABSENT and s.problem}

    @property
    def stale(self) -> list[ToggleStatus]:
        return [status for status in self.statuses if status.state is ToggleState.STALE]


@dataclass(frozen=True)
class DriftSurvey:
    """The survey of all toggles on all releases."""

    toggles: tuple[Toggle, ...]
    releases: list[ReleaseDrift]

    @property
    def stale_count(self) -> int:
        return sum(len(drift.stale) for drift in self.releases)

    def describe(self) -> str:
        states = [state for drift in self.releases for state in drift.states.values()]
        outside = sum(len(drift.out_of_range) for drift in self.releases)
        some = f" ({outside} by a range's end alone: -)" if outside else ""
        counted = ", ".join(
            f"{states.count(s.value)} {s.value}{some if s is ToggleState.ABSENT else ''}"
            for s in ToggleState
        )
        broken = [s for drift in self.releases for s in drift.upstream_states.values()]
        own = f"; of upstream's {len(broken)}, {broken.count('broken')} broken" if broken else ""
        toggles = format_count(len(self.toggles), "toggle")
        return f"{toggles} on {format_count(len(self.releases), 'release')}: {counted}{own}"

    def as_data(self) -> dict[str, Any]:
        return {
            "releases": [
                {
                    "release": drift.name,
                    "toggles": [
                        {
                            "id": status.toggle.id,
                            "state": status.state.value,
                            "problem": status.problem,
                            "nearest": status.nearest,
                        }
                        for status in drift.statuses
                    ],
                    "upstream": [
                        {"id": number, "state": state, "problem": drift.upstream_problems[number]}
                        for number, state in drift.upstream_states.items()
                    ],
                }
                for drift in self.releases
            ],
            "stale": self.stale_count,
        }


def verify_toggle_status(toggle: Toggle, tree: SourceTree) -> ToggleStatus:
    """Find a toggle's status and try its patch; a patch that fails makes the toggle stale."""
    status = find_toggle_status(toggle, tree)
    direction = FLIP_DIRECTIONS.get(status.state)
    if direction is not None:
        try:
            make_plan([ToggleChoice(toggle, direction)], tree, str(tree.version), status)
        except PatchError as error:
            return replace(status, state=ToggleState.STALE, problem=str(error))
    return status


def survey_drift(
    toggles: list[Toggle], trees: list[SourceTree], only_named: bool = False
) -> DriftSurvey:
    """Survey toggles on releases; `only_named` limits SGLang's own reverts to the same fixes."""
    numbers = {str(number) for toggle in toggles for number in toggle.upstream}
    cache = StatusCache("drift", verify_toggle_status)
    drifts = []
    for tree in trees:
        upstream_states = [
            r
            for r in upstream_reverts.read_upstream_reverts(tree)
            if not only_named or r.name in numbers
        ]
        drifts.append(
            ReleaseDrift(
                tree.name,
                tuple(cache.find_statuses(toggles, tree)),
                {
                    revert.name: "broken" if revert.problem else "applies"
                    for revert in upstream_states
                },
                {revert.name: revert.problem for revert in upstream_states},
            )
        )
    return DriftSurvey(tuple(toggles), drifts)
