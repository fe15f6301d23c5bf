"""The status of a toggle on a release, read from the release's source.

Invariant: a toggle is fixed or buggy only if each of its edits matches exactly once, in one form.
Example: with `fixed: a + 1` and `buggy: a`, a target with two `a + 1` is stale, not fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from packaging.version import Version

from harness.core.cpp_tokens import is_cpp_path
from harness.core.source_scopes import ModuleSource, ReleaseSources
from harness.fixes.forms import parse_form
from harness.fixes.matching.nearest_code import find_nearest_source
from harness.fixes.patterns import PatternMatch
from harness.fixes.registry.schema import CodeTarget, Toggle, ToggleEdit, ToggleVariant

_NEWER_THAN_ALL = Version("99999")


class ToggleState(Enum):
    FIXED = "fixed"
    BUGGY = "buggy"
    ABSENT = "absent"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class EditSite:
    """The match of one edit in a release, with the form that matches."""

    edit: ToggleEdit
    target: CodeTarget
    source: ModuleSource
    match: PatternMatch
    state: ToggleState


@dataclass(frozen=True, slots=True)
class ToggleStatus:
    """A toggle's state on a release; a stale one has a problem and the nearest source."""

    toggle: Toggle
    state: ToggleState
    variant: ToggleVariant | None = None
    sites: tuple[EditSite, ...] = ()
    problem: str = ""
    nearest: str = ""


def find_toggle_status(toggle: Toggle, sources: ReleaseSources) -> ToggleStatus:
    """Find the state of a toggle on a release.

    Inside a variant's range exactly one form must match. Outside of every range no form may match:
    a match means that the range is wrong, and makes the toggle stale.
    """
    version = sources.version
    if version is None:
        return _find_status_without_version(toggle, sources)
    inside = [v for v in toggle.variants if v.specifier.contains(version)]
    if inside:
        return _match_variant(toggle, inside[0], sources)
    for variant in toggle.variants:
        status = _match_variant(toggle, variant, sources, explain=False)
        if status.state in (ToggleState.FIXED, ToggleState.BUGGY):
            return ToggleStatus(
                toggle,
                ToggleState.STALE,
                variant,
                problem=(
                    f"the range '{variant.releases}' leaves out {version}, "
                    f"where its {status.state.value} form is found"
                ),
            )
    existing = [
        target
        for variant in toggle.variants
        for target in variant.targets
        if (source := sources.read(target.module)) is not None
        and source.find_scopes(target.qualname)
    ]
    problem = f"no range includes {version}, although {existing[0]} exists" if existing else ""
    return ToggleStatus(toggle, ToggleState.ABSENT, problem=problem)


def _find_status_without_version(toggle: Toggle, sources: ReleaseSources) -> ToggleStatus:
    """Find the newest variant that matches, for a checkout without a version.

    Such a checkout counts as newer than all releases: where a range has no end, its code must be
    there, so that a module that was moved or deleted makes the toggle stale.
    """
    statuses = [_match_variant(toggle, variant, sources) for variant in reversed(toggle.variants)]
    for status in statuses:
        if status.state in (ToggleState.FIXED, ToggleState.BUGGY):
            return status
    has_ended = not any(v.specifier.contains(_NEWER_THAN_ALL) for v in toggle.variants)
    targets = [target for variant in toggle.variants for target in variant.targets]
    if has_ended and all(sources.read(target.module) is None for target in targets):
        return ToggleStatus(toggle, ToggleState.ABSENT)
    return statuses[0]


def _match_variant(
    toggle: Toggle, variant: ToggleVariant, sources: ReleaseSources, explain: bool = True
) -> ToggleStatus:
    sites: list[EditSite] = []
    for edit in variant.edits:
        target = variant.get_target(edit)
        site = locate_edit(edit, target, sources)
        if isinstance(site, str):
            nearest = find_nearest_source(edit, target, sources) if explain else ""
            return ToggleStatus(toggle, ToggleState.STALE, variant, problem=site, nearest=nearest)
        sites.append(site)
    states = {site.state for site in sites}
    if len(states) > 1:
        parts = ", ".join(f"{site.target} is {site.state.value}" for site in sites)
        return ToggleStatus(
            toggle, ToggleState.STALE, variant, problem=f"its edits disagree: {parts}"
        )
    return ToggleStatus(toggle, states.pop(), variant, tuple(sites))


def locate_edit(edit: ToggleEdit, target: CodeTarget, sources: ReleaseSources) -> EditSite | str:
    """Locate the only match of an edit, or return the reason why there is none."""
    source = sources.read(target.module)
    if source is None:
        return f"there is no {'source' if is_cpp_path(target.module) else 'module'} {target.module}"
    scopes = source.find_scopes(target.qualname)
    if not scopes:
        return f"{target.module} defines no {target.qualname}"
    fixed, buggy = (
        [m for scope in scopes for m in parse_form(text, target.module).find(scope, source.text)]
        for text in (edit.fixed, edit.buggy)
    )
    if len(fixed) == 1 and not buggy:
        return EditSite(edit, target, source, fixed[0], ToggleState.FIXED)
    if len(buggy) == 1 and not fixed:
        return EditSite(edit, target, source, buggy[0], ToggleState.BUGGY)
    if not fixed and not buggy:
        return f"{target} has neither form"
    if fixed and buggy:
        return f"{target} has both forms"
    which = "fixed" if fixed else "buggy"
    return f"{target} has the {which} form {len(fixed or buggy)} times, not once"
