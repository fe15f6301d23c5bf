"""From toggles and a release's sources to patched sources, whole or not at all.

A plan is plain data: a patched process reads it without a parser, and two processes that were
given the same toggles run the same text.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from harness.errors import ConflictError, NotApplicable, PatchError
from harness.matching.patterns import Match, same_code
from harness.matching.scopes import ModuleSource
from harness.matching.states import Finding, Site, Sources, State, find, form
from harness.registry.schema import Toggle


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

    def __str__(self) -> str:
        return f"{self.direction.value} {self.toggle.id}"


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


def make(choices: Iterable[Choice], sources: Sources, release: str) -> Plan:
    """The plan for these toggles on this release, or an error that names the one in the way."""
    chosen = list(dict.fromkeys(choices))
    _refuse_both_ways(chosen)
    by_module: dict[str, list[tuple[Choice, Site]]] = defaultdict(list)
    for choice in chosen:
        finding = find(choice.toggle, sources)
        _refuse_state(choice, finding, release)
        for site in finding.sites:
            by_module[site.source.module].append((choice, site))
    modules = tuple(_patch(edits) for edits in by_module.values())
    return Plan(
        release,
        tuple((c.toggle.id, c.direction.value, c.toggle.title) for c in chosen),
        modules,
    )


def _refuse_both_ways(choices: list[Choice]) -> None:
    seen: dict[str, Choice] = {}
    for choice in choices:
        other = seen.setdefault(choice.toggle.id, choice)
        if other is not choice:
            raise ConflictError(
                f"toggle {choice.toggle.id} is asked for twice over: "
                f"{other.direction.value} and {choice.direction.value}"
            )


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


def _patch(edits: list[tuple[Choice, Site]]) -> PatchedModule:
    source = edits[0][1].source
    edits = sorted(edits, key=lambda item: (item[1].match.start, item[1].match.end))
    for (choice, site), (other, following) in itertools.pairwise(edits):
        if following.match.start < site.match.end:
            raise ConflictError(
                f"{choice} and {other} change the same code, "
                f"{source.module} line {line_of(source.text, following.match.start)}"
            )
    text, spans = "", []
    position = 0
    for choice, site in edits:
        text += source.text[position : site.match.start]
        written = _written(choice, site)
        spans.append((choice, site, len(text), len(text) + len(written)))
        text += written
        position = site.match.end
    text += source.text[position:]
    _check(source, text, spans)
    return PatchedModule(
        source.module,
        source.path,
        digest(source.text),
        text,
        tuple(_site(choice, site, text, start, end) for choice, site, start, end in spans),
    )


def _written(choice: Choice, site: Site) -> str:
    if choice.direction is Direction.OBSERVE:
        return site.source.text[site.match.start : site.match.end]
    side = site.edit.buggy if choice.direction is Direction.REVERT else site.edit.fixed
    return form(side).write(site.match, site.source.text)


def _check(source: ModuleSource, text: str, spans: list[tuple[Choice, Site, int, int]]) -> None:
    """The patched text is Python, and holds each edit in its other form, once, where it was put."""
    try:
        compile(text, source.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        asked = ", ".join(sorted({str(choice) for choice, *_ in spans}))
        raise PatchError(
            f"{source.module} does not compile after {asked}: {error.msg} at line {error.lineno}: "
            f"{(error.text or '').strip()}"
        ) from error
    after = ModuleSource(source.module, source.path, text)
    for choice, site, start, _ in spans:
        if choice.direction is Direction.OBSERVE:
            continue
        wanted, gone = site.edit.buggy, site.edit.fixed
        if choice.direction is Direction.ENABLE:
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


def _site(choice: Choice, site: Site, text: str, start: int, end: int) -> PatchedSite:
    line, column = position_of(text, start)
    end_line, end_column = position_of(text, end)
    return PatchedSite(
        choice.toggle.id,
        choice.direction.value,
        str(site.target),
        line,
        column,
        end_line,
        end_column,
    )


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def position_of(text: str, offset: int) -> tuple[int, int]:
    """Line and column as Python's own parser counts them: the column in UTF-8 bytes."""
    start = text.rfind("\n", 0, offset) + 1
    return line_of(text, offset), len(text[start:offset].encode())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
