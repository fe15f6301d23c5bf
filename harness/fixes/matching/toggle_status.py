"""The state of a toggle on a release, read from that release's source and never assumed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from harness.core.source_scopes import ModuleSource, ReleaseSources
from harness.fixes.matching.nearest_code import find_nearest_source
from harness.fixes.patterns import CodePattern, PatternMatch
from harness.fixes.registry.schema import CodeTarget, Toggle, ToggleEdit, ToggleVariant


class ToggleState(Enum):
    FIXED = "fixed"
    BUGGY = "buggy"
    ABSENT = "absent"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class EditSite:
    """One edit of a toggle, found: where it stands and which form it has there."""

    edit: ToggleEdit
    target: CodeTarget
    source: ModuleSource
    match: PatternMatch
    state: ToggleState


@dataclass(frozen=True, slots=True)
class ToggleStatus:
    """What a toggle is on a release; a stale one says why and shows the nearest source."""

    toggle: Toggle
    state: ToggleState
    variant: ToggleVariant | None = None
    sites: tuple[EditSite, ...] = ()
    problem: str = ""
    nearest: str = ""


@lru_cache(maxsize=1024)
def parse_form(text: str) -> CodePattern:
    return CodePattern(text)


def find_toggle_status(toggle: Toggle, sources: ReleaseSources) -> ToggleStatus:
    """The state of a toggle on a release.

    Inside a variant's range the code must be there in one form. Outside of every range it must
    not be: a form found there means that the range is wrong, which is as stale as a form lost.
    """
    version = sources.version
    if version is None:
        return _find_status_without_version(toggle, sources)
    inside = [v for v in toggle.variants if v.specifier.contains(version)]
    if inside:
        return _match_variant(toggle, inside[0], sources)
    for variant in toggle.variants:
        finding = _match_variant(toggle, variant, sources, explain=False)
        if finding.state in (ToggleState.FIXED, ToggleState.BUGGY):
            return ToggleStatus(
                toggle,
                ToggleState.STALE,
                variant,
                problem=(
                    f"the range '{variant.releases}' leaves out {version}, "
                    f"where its {finding.state.value} form is found"
                ),
            )
    there = [
        target
        for variant in toggle.variants
        for target in variant.targets
        if (source := sources.read(target.module)) is not None
        and source.find_scopes(target.qualname)
    ]
    problem = f"no range holds {version}, though {there[0]} is there" if there else ""
    return ToggleStatus(toggle, ToggleState.ABSENT, problem=problem)


def _find_status_without_version(toggle: Toggle, sources: ReleaseSources) -> ToggleStatus:
    """A checkout may not say its version: any variant that fits is taken, the newest first."""
    findings = [_match_variant(toggle, variant, sources) for variant in reversed(toggle.variants)]
    for finding in findings:
        if finding.state in (ToggleState.FIXED, ToggleState.BUGGY):
            return finding
    if all(sources.read(t.module) is None for v in toggle.variants for t in v.targets):
        return ToggleStatus(toggle, ToggleState.ABSENT)
    return findings[0]


def _match_variant(
    toggle: Toggle, variant: ToggleVariant, sources: ReleaseSources, explain: bool = True
) -> ToggleStatus:
    sites: list[EditSite] = []
    for edit in variant.edits:
        target = variant.get_target(edit)
        found = locate_edit(edit, target, sources)
        if isinstance(found, str):
            nearest = find_nearest_source(edit, target, sources) if explain else ""
            return ToggleStatus(toggle, ToggleState.STALE, variant, problem=found, nearest=nearest)
        sites.append(found)
    states = {site.state for site in sites}
    if len(states) > 1:
        parts = ", ".join(f"{site.target} is {site.state.value}" for site in sites)
        return ToggleStatus(
            toggle, ToggleState.STALE, variant, problem=f"its edits disagree: {parts}"
        )
    return ToggleStatus(toggle, states.pop(), variant, tuple(sites))


def locate_edit(edit: ToggleEdit, target: CodeTarget, sources: ReleaseSources) -> EditSite | str:
    """The one place of an edit, in the one form it has there; or why there is no such place."""
    source = sources.read(target.module)
    if source is None:
        return f"there is no module {target.module}"
    scopes = source.find_scopes(target.qualname)
    if not scopes:
        return f"{target.module} defines no {target.qualname}"
    fixed = [m for scope in scopes for m in parse_form(edit.fixed).find(scope, source.text)]
    buggy = [m for scope in scopes for m in parse_form(edit.buggy).find(scope, source.text)]
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
