"""The state of a toggle on a release, read from that release's source and never assumed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from harness.matching.nearest import nearest_source
from harness.registry.schema import Edit, Target, Toggle, Variant
from harness.syntax.patterns import Form, Match
from harness.syntax.scopes import ModuleSource, Sources


class State(Enum):
    FIXED = "fixed"
    BUGGY = "buggy"
    ABSENT = "absent"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Site:
    """One edit of a toggle, found: where it stands and which form it has there."""

    edit: Edit
    target: Target
    source: ModuleSource
    match: Match
    state: State


@dataclass(frozen=True, slots=True)
class Finding:
    """What a toggle is on a release; a stale one says why and shows the nearest source."""

    toggle: Toggle
    state: State
    variant: Variant | None = None
    sites: tuple[Site, ...] = ()
    problem: str = ""
    nearest: str = ""


@lru_cache(maxsize=1024)
def form(text: str) -> Form:
    return Form(text)


def find(toggle: Toggle, sources: Sources) -> Finding:
    """The state of a toggle on a release.

    Inside a variant's range the code must be there in one form. Outside of every range it must
    not be: a form found there means that the range is wrong, which is as stale as a form lost.
    """
    version = sources.version
    if version is None:
        return _without_version(toggle, sources)
    inside = [v for v in toggle.variants if v.specifier.contains(version)]
    if inside:
        return _in_range(toggle, inside[0], sources)
    for variant in toggle.variants:
        finding = _in_range(toggle, variant, sources, explain=False)
        if finding.state in (State.FIXED, State.BUGGY):
            return Finding(
                toggle,
                State.STALE,
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
        if (source := sources.read(target.module)) is not None and source.scopes(target.qualname)
    ]
    problem = f"no range holds {version}, though {there[0]} is there" if there else ""
    return Finding(toggle, State.ABSENT, problem=problem)


def _without_version(toggle: Toggle, sources: Sources) -> Finding:
    """A checkout may not say its version: any variant that fits is taken, the newest first."""
    findings = [_in_range(toggle, variant, sources) for variant in reversed(toggle.variants)]
    for finding in findings:
        if finding.state in (State.FIXED, State.BUGGY):
            return finding
    if all(sources.read(t.module) is None for v in toggle.variants for t in v.targets):
        return Finding(toggle, State.ABSENT)
    return findings[0]


def _in_range(toggle: Toggle, variant: Variant, sources: Sources, explain: bool = True) -> Finding:
    sites: list[Site] = []
    for edit in variant.edits:
        target = variant.target_of(edit)
        found = locate(edit, target, sources)
        if isinstance(found, str):
            nearest = nearest_source(edit, target, sources) if explain else ""
            return Finding(toggle, State.STALE, variant, problem=found, nearest=nearest)
        sites.append(found)
    states = {site.state for site in sites}
    if len(states) > 1:
        parts = ", ".join(f"{site.target} is {site.state.value}" for site in sites)
        return Finding(toggle, State.STALE, variant, problem=f"its edits disagree: {parts}")
    return Finding(toggle, states.pop(), variant, tuple(sites))


def locate(edit: Edit, target: Target, sources: Sources) -> Site | str:
    """The one place of an edit, in the one form it has there; or why there is no such place."""
    source = sources.read(target.module)
    if source is None:
        return f"there is no module {target.module}"
    scopes = source.scopes(target.qualname)
    if not scopes:
        return f"{target.module} defines no {target.qualname}"
    fixed = [m for scope in scopes for m in form(edit.fixed).find(scope, source.text)]
    buggy = [m for scope in scopes for m in form(edit.buggy).find(scope, source.text)]
    if len(fixed) == 1 and not buggy:
        return Site(edit, target, source, fixed[0], State.FIXED)
    if len(buggy) == 1 and not fixed:
        return Site(edit, target, source, buggy[0], State.BUGGY)
    if not fixed and not buggy:
        return f"{target} has neither form"
    if fixed and buggy:
        return f"{target} has both forms"
    which = "fixed" if fixed else "buggy"
    return f"{target} has the {which} form {len(fixed or buggy)} times, not once"
