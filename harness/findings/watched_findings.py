"""What a newer version of SGLang did to each finding, from its sources, and what to write then.

A finding is still there while the buggy form of its proposed fix matches, or, if it has none for
the version, while its functions are as in the newest release that it names.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from packaging.version import Version

from harness.core.source_scopes import ReleaseSources
from harness.findings.finding_files import name_module
from harness.findings.schema import Finding
from harness.fixes.drift import verify_toggle_status
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus
from harness.fixes.registry.schema import Toggle
from harness.releases.source_trees import SourceTree

_NEWER_THAN_ALL = Version("99999")  # a checkout without a version
FindBase = Callable[[Finding], SourceTree | None]  # the newest release that a finding names


class WatchedState(Enum):
    STILL_THERE = "still there"
    FIXED = "fixed"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True)
class WatchedFinding:
    """The state of a finding in a version; `advice` is what must be rewritten, or ''."""

    finding: Finding
    state: WatchedState
    why: str
    advice: str = ""
    diff: str = ""  # of its functions, from the newest release that it names


def watch_finding(
    finding: Finding, toggle: Toggle | None, tree: SourceTree, find_base: FindBase
) -> WatchedFinding:
    """Find the state of a finding in a version; `toggle` is its proposed fix."""
    base = find_base(finding)
    diff = compare_functions(finding, base, tree) if base is not None else ""
    status = verify_toggle_status(toggle, tree) if toggle is not None else None
    if status is not None and status.state is ToggleState.ABSENT and status.problem:
        status = None  # no range of the fix has the version
    state, why = _find_state(finding, status, tree, base, diff)
    is_named = finding.specifier.contains(tree.version or _NEWER_THAN_ALL)
    is_stale = status is not None and status.state is ToggleState.STALE
    if is_named == (state is WatchedState.STILL_THERE) and not is_stale:
        return WatchedFinding(finding, state, why)
    version, file = tree.version or tree.name, f"findings/{finding.name}.yaml"
    advice = {
        WatchedState.STILL_THERE: f"{file}: `releases` leaves out {version}, which has the bug",
        WatchedState.CHANGED: f"read the diff, and write toggle and finding anew for {version}",
        WatchedState.GONE: f"{file}: end `releases` before {version}, or find the code's new place",
        WatchedState.FIXED: f'{file}: end `releases` by "<{version}", and say who fixed it; the '
        "toggle moves to toggles/ with the number of upstream's fix",
    }
    return WatchedFinding(finding, state, why, advice[state], diff)


def _find_state(
    finding: Finding,
    status: ToggleStatus | None,
    tree: SourceTree,
    base: SourceTree | None,
    diff: str,
) -> tuple[WatchedState, str]:
    if status is not None:
        words = f"the {status.state.value} form of {status.toggle.id} matches"
        return {
            ToggleState.BUGGY: (WatchedState.STILL_THERE, words),
            ToggleState.FIXED: (WatchedState.FIXED, words),
            ToggleState.STALE: (WatchedState.CHANGED, status.problem),
            ToggleState.ABSENT: (WatchedState.GONE, "the code is not there"),
        }[status.state]
    if tree.version is not None and _ends_before(finding, tree.version):
        return WatchedState.FIXED, f"its releases, {finding.releases}, end before"
    if not any(read_functions(finding, tree).values()):
        return WatchedState.GONE, "its functions are not there"
    if base is None:
        return WatchedState.CHANGED, "no release that it names is here to compare with"
    if diff:
        return WatchedState.CHANGED, f"its functions differ from those of {base.name}"
    return WatchedState.STILL_THERE, f"its functions are those of {base.name}"


def _ends_before(finding: Finding, version: Version) -> bool:
    return any(
        limit.operator in ("<", "<=") and not limit.contains(version, prereleases=True)
        for limit in finding.specifier
    )


def compare_functions(finding: Finding, base: ReleaseSources, tree: ReleaseSources) -> str:
    before, after = read_functions(finding, base), read_functions(finding, tree)
    lines = (
        line
        for name, text in before.items()
        for line in difflib.unified_diff(
            text.splitlines(), after[name].splitlines(), name, name, lineterm="", n=2
        )
    )
    return "\n".join(lines)


def read_functions(finding: Finding, sources: ReleaseSources) -> dict[str, str]:
    """Read the text of each function of a finding; '' if it is not there."""
    modules = [sources.read(name_module(file)) for file in finding.files]
    texts = dict.fromkeys(finding.functions, "")
    for source in filter(None, modules):
        for function in texts:
            for scope in source.find_scopes(function):
                first, last = source.get_lines(scope)
                texts[function] += "\n".join(source.text.splitlines()[first : last + 1]) + "\n"
    return texts
