"""From toggles and a release's sources to patched sources, whole or not at all.

A plan is plain data: a patched process reads it without a parser, and two processes that were
given the same toggles run the same text.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from harness.errors import ConflictError, NotApplicable, PatchError
from harness.matching.states import Finding, Site, State, find, form
from harness.registry.schema import Target, Toggle
from harness.syntax.patterns import Match, same_code
from harness.syntax.scopes import ModuleSource, Sources


class Direction(Enum):
    """What is asked of a toggle: the fix out, the fix in, or only to count that it runs."""

    REVERT = "revert"
    ENABLE = "enable"
    OBSERVE = "observe"


NEEDED = {
    Direction.REVERT: (State.FIXED,),
    Direction.ENABLE: (State.BUGGY,),
    Direction.OBSERVE: (State.FIXED, State.BUGGY),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A toggle and what is asked of it."""

    toggle: Toggle
    direction: Direction

    @property
    def id(self) -> str:
        return self.toggle.id

    @property
    def title(self) -> str:
        return self.toggle.title

    @property
    def verb(self) -> str:
        return self.direction.value

    def __str__(self) -> str:
        return f"{self.verb} {self.id}"


@dataclass(frozen=True, slots=True)
class Placed:
    """A change that no toggle states: a piece of a module's text, replaced where it stands."""

    id: str
    title: str
    target: Target
    start: int  # characters of the module's own text
    end: int
    before: str
    after: str
    verb = "fault"

    def __str__(self) -> str:
        return f"{self.verb} {self.id}"


Change = Choice | Placed


@dataclass(frozen=True, slots=True)
class PatchedSite:
    """Where a toggle's code stands in the patched text: lines from 1, columns from 0."""

    toggle: str
    direction: str
    target: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class PatchedModule:
    """One module's text after all edits; `digest` is of the text before them."""

    module: str
    path: str
    digest: str
    text: str
    sites: tuple[PatchedSite, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a process needs to run a release under toggles."""

    release: str
    toggles: tuple[tuple[str, str, str], ...]  # id, direction, title
    modules: tuple[PatchedModule, ...]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Edit:
    """One piece of a module that a change replaces; `site` is where a toggle stands."""

    change: Change
    target: Target
    source: ModuleSource
    start: int
    end: int
    written: str
    site: Site | None


def make(changes: Iterable[Change], sources: Sources, release: str) -> Plan:
    """The plan for these changes of this release, or an error that names the one in the way."""
    chosen = list(dict.fromkeys(changes))
    _refuse_both_ways(chosen)
    by_module: dict[str, list[_Edit]] = defaultdict(list)
    for change in chosen:
        for edit in _edits(change, sources, release):
            by_module[edit.source.module].append(edit)
    modules = tuple(_patch(edits) for edits in by_module.values())
    return Plan(release, tuple((c.id, c.verb, c.title) for c in chosen), modules)


def _refuse_both_ways(changes: list[Change]) -> None:
    seen: dict[str, Change] = {}
    for change in changes:
        other = seen.setdefault(change.id, change)
        if other is not change:
            raise ConflictError(
                f"toggle {change.id} is asked for twice over: {other.verb} and {change.verb}"
            )


def _edits(change: Change, sources: Sources, release: str) -> Iterator[_Edit]:
    if isinstance(change, Placed):
        source = sources.read(change.target.module)
        if source is None or source.text[change.start : change.end] != change.before:
            raise NotApplicable(f"{change}: {change.target} is not the text that it was made for")
        yield _Edit(change, change.target, source, change.start, change.end, change.after, None)
        return
    finding = find(change.toggle, sources)
    _refuse_state(change, finding, release)
    for site in finding.sites:
        start, end = site.match.start, site.match.end
        yield _Edit(change, site.target, site.source, start, end, _written(change, site), site)


def _refuse_state(choice: Choice, finding: Finding, release: str) -> None:
    if finding.state in NEEDED[choice.direction]:
        return
    toggle, verb = choice.toggle, choice.direction.value
    why = {
        State.BUGGY: "the bug is in that release; `enable` would carry the fix to it",
        State.FIXED: "the fix is in that release already; `revert` would take it out",
        State.ABSENT: "that release does not have the code",
        State.STALE: finding.problem + (f"\n{finding.nearest}" if finding.nearest else ""),
    }[finding.state]
    raise NotApplicable(
        f"cannot {verb} {toggle.id} on SGLang {release}: it is {finding.state.value} there: {why}"
    )


def _patch(edits: list[_Edit]) -> PatchedModule:
    source = edits[0].source
    edits = sorted(edits, key=lambda edit: (edit.start, edit.end))
    for edit, following in itertools.pairwise(edits):
        if following.start < edit.end:
            raise ConflictError(
                f"{edit.change} and {following.change} change the same code, "
                f"{source.module} line {line_of(source.text, following.start)}"
            )
    text, spans = "", []
    position = 0
    for edit in edits:
        text += source.text[position : edit.start]
        spans.append((edit, len(text), len(text) + len(edit.written)))
        text += edit.written
        position = edit.end
    text += source.text[position:]
    _check(source, text, spans)
    return PatchedModule(
        source.module,
        source.path,
        digest(source.text),
        text,
        tuple(_site(edit, text, start, end) for edit, start, end in spans),
    )


def _written(choice: Choice, site: Site) -> str:
    if choice.direction is Direction.OBSERVE:
        return site.source.text[site.match.start : site.match.end]
    side = site.edit.buggy if choice.direction is Direction.REVERT else site.edit.fixed
    return form(side).write(site.match, site.source.text)


def _check(source: ModuleSource, text: str, spans: list[tuple[_Edit, int, int]]) -> None:
    """The patched text is Python, and holds each toggle's other form, once, where it was put."""
    if all(edit.site is None for edit, *_ in spans):
        return  # a fault: its function was compiled as it was made
    try:
        compile(text, source.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        asked = ", ".join(sorted({str(edit.change) for edit, *_ in spans}))
        raise PatchError(
            f"{source.module} does not compile after {asked}: {error.msg} at line {error.lineno}: "
            f"{(error.text or '').strip()}"
        ) from error
    after = ModuleSource(source.module, source.path, text)
    for edit, start, _ in spans:
        choice, site = edit.change, edit.site
        if site is None or choice.verb == Direction.OBSERVE.value:
            continue
        wanted, gone = site.edit.buggy, site.edit.fixed
        if choice.verb == Direction.ENABLE.value:
            wanted, gone = gone, wanted
        scopes = after.scopes(site.target.qualname)
        there = [m for scope in scopes for m in form(wanted).find(scope, text)]
        left = [m for scope in scopes for m in form(gone).find(scope, text)]
        if [m.start for m in there] != [start] or left or not _binds_alike(there[0], site.match):
            raise PatchError(
                f"{choice}: after the edit {site.target} has the wanted form {len(there)} times "
                f"and the other {len(left)} times, or its names stand for other code; "
                "the pattern is too loose"
            )


def _binds_alike(written: Match, found: Match) -> bool:
    """`-$A` written for `x + y` would read `-x + y`, where `$A` is `x`."""
    return written.bindings.keys() == found.bindings.keys() and all(
        same_code(written.bindings[name], code) for name, code in found.bindings.items()
    )


def _site(edit: _Edit, text: str, start: int, end: int) -> PatchedSite:
    line, column = position_of(text, start)
    end_line, end_column = position_of(text, end)
    change = edit.change
    return PatchedSite(change.id, change.verb, str(edit.target), line, column, end_line, end_column)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def position_of(text: str, offset: int) -> tuple[int, int]:
    """Line and column as Python's own parser counts them: the column in UTF-8 bytes."""
    start = text.rfind("\n", 0, offset) + 1
    return line_of(text, offset), len(text[start:offset].encode())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
