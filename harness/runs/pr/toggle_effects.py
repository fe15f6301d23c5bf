"""What a change does to each toggle, from its states before and after, with and without mending.

Example: `max_bs * self.topk * n` becomes `max_bs * n`, which is the buggy form of 27460: its state
goes from fixed to buggy, so the fix is taken back. If the change renames `max_bs` instead, no form
matches; the toggle is mended for the run, and its state by the mended form counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus, find_toggle_status
from harness.fixes.patch_plan import get_position
from harness.fixes.registry.schema import Toggle
from harness.runs.pr.source_change import SourceChange
from harness.store.pr.part_results import ToggleChange, ToggleEffect

_NEAREST_LINE = re.compile(r"^\+\+\+ .*:(\d+)$", re.MULTILINE)
PRESENT = (ToggleState.FIXED, ToggleState.BUGGY)


@dataclass(frozen=True)
class EndStatuses:
    """The statuses of toggles on one end: by their own files, and by those mended for the run."""

    own: Mapping[str, ToggleStatus]
    mended: Mapping[str, ToggleStatus]


def find_toggle_changes(
    before: EndStatuses, after: EndStatuses, change: SourceChange
) -> list[ToggleChange]:
    """Find the toggles whose state or form the change alters, the worst first."""
    changes = []
    for toggle_id, status in after.mended.items():
        effect = _find_effect(toggle_id, before, after)
        if effect is not None:
            changes.append(_make_change(toggle_id, effect, before, status, after, change))
    return sorted(changes, key=lambda one: (list(ToggleEffect).index(one.effect), one.id))


def _find_effect(toggle_id: str, before: EndStatuses, after: EndStatuses) -> ToggleEffect | None:
    old, new = before.mended[toggle_id].state, after.mended[toggle_id].state
    if (old, new) == (ToggleState.FIXED, ToggleState.BUGGY):
        return ToggleEffect.TAKEN_BACK
    if (old, new) == (ToggleState.BUGGY, ToggleState.FIXED):
        return ToggleEffect.BROUGHT
    if old in PRESENT and new is ToggleState.ABSENT:
        return ToggleEffect.GONE
    if old in PRESENT and new is ToggleState.STALE:
        return ToggleEffect.STALE
    if old is ToggleState.ABSENT and new is ToggleState.BUGGY:
        return ToggleEffect.APPEARS
    was_stale = before.own[toggle_id].state is ToggleState.STALE
    is_stale = after.own[toggle_id].state is ToggleState.STALE
    if is_stale and not was_stale and new in PRESENT:
        return ToggleEffect.MENDED
    return None


def _make_change(
    toggle_id: str,
    effect: ToggleEffect,
    before: EndStatuses,
    status: ToggleStatus,
    after: EndStatuses,
    change: SourceChange,
) -> ToggleChange:
    toggle, own = status.toggle, after.own[toggle_id]
    path, line = _locate_toggle(toggle, change, own.nearest)
    return ToggleChange(
        id=toggle_id,
        title=toggle.title,
        symptom=toggle.symptom.value,
        effect=effect,
        before=before.mended[toggle_id].state.value,
        after=status.state.value,
        upstream=list(toggle.upstream),
        path=path,
        line=line,
        why=own.problem if effect in (ToggleEffect.STALE, ToggleEffect.MENDED) else "",
        diff=own.nearest if effect in (ToggleEffect.STALE, ToggleEffect.MENDED) else "",
    )


def _locate_toggle(toggle: Toggle, change: SourceChange, nearest: str) -> tuple[str, int]:
    """Locate a toggle's code after the change, or else where it was."""
    for tree in (change.head, change.base):
        status = find_toggle_status(toggle, tree)  # a cached status has no sites
        if status.sites:
            site = status.sites[0]
            line, _ = get_position(site.source.text, site.match.start)
            return change.locate(site.target.module), line if tree is change.head else 1
    for variant in reversed(toggle.variants):
        module = variant.targets[0].module
        if change.head.read(module) is not None:
            found = _NEAREST_LINE.search(nearest)
            return change.locate(module), int(found[1]) if found else 1
    return "", 0


def index_statuses(statuses: Iterable[ToggleStatus]) -> dict[str, ToggleStatus]:
    return {status.toggle.id: status for status in statuses}
