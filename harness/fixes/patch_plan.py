"""Patch plans: the patched text of every module that a set of toggles changes on one release.

A plan contains all of its edits, or is refused. It is plain data: a patched process reads it
without a parser, and two processes with the same toggles run the same text.

Invariant: after an edit the form that the edit writes matches exactly once, at the place of the
edit, with the same bindings, and the other form does not match at all. Example: reverting
`fixed: x + 1`, `buggy: x` in `return x + 1` would leave `return x`; a second `x` in the same
function makes the pattern ambiguous, and the plan fails with a PatchError.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from harness.core.code_digest import compute_digest
from harness.core.cpp_scopes import CppSource
from harness.core.errors import PatchConflictError, PatchError, ToggleNotApplicableError
from harness.core.source_scopes import ModuleSource, ReleaseSources
from harness.fixes.forms import Form, parse_form
from harness.fixes.matching.nearest_code import format_diff
from harness.fixes.matching.toggle_status import (
    EditSite,
    ToggleState,
    ToggleStatus,
    find_toggle_status,
)
from harness.fixes.patterns import PatternMatch
from harness.fixes.registry.schema import CodeTarget, Toggle


class Direction(Enum):
    """How a toggle changes the code: revert the fix, enable it, or only count its runs."""

    REVERT = "revert"
    ENABLE = "enable"
    OBSERVE = "observe"


REQUIRED_STATES = {
    Direction.REVERT: (ToggleState.FIXED,),
    Direction.ENABLE: (ToggleState.BUGGY,),
    Direction.OBSERVE: (ToggleState.FIXED, ToggleState.BUGGY),
}
# The direction that turns a state into the other one.
FLIP_DIRECTIONS = {ToggleState.FIXED: Direction.REVERT, ToggleState.BUGGY: Direction.ENABLE}


@dataclass(frozen=True, slots=True)
class ToggleChoice:
    """A toggle and its direction."""

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
class PlacedFault:
    """An injected fault: a span of a module's text and its replacement, without a toggle file."""

    id: str
    title: str
    target: CodeTarget
    start: int  # first character in the module's own text
    end: int
    before: str
    after: str
    verb = "fault"

    def __str__(self) -> str:
        return f"{self.verb} {self.id}"


SourceChange = ToggleChoice | PlacedFault


@dataclass(frozen=True, slots=True)
class PatchedSite:
    """The position of a toggle's code in the patched text: lines from 1, columns from 0."""

    toggle: str
    direction: str
    target: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class PatchedModule:
    """One module's text after all edits; `digest` is the digest of the original text."""

    module: str
    path: str
    digest: str
    text: str
    sites: tuple[PatchedSite, ...]


@dataclass(frozen=True, slots=True)
class PatchPlan:
    """Everything a process needs to run a release under toggles."""

    release: str
    toggles: tuple[tuple[str, str, str], ...]  # id, direction, title
    modules: tuple[PatchedModule, ...]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _PlannedEdit:
    """A span of a module and its replacement; `site` is None for an injected fault."""

    change: SourceChange
    target: CodeTarget
    source: ModuleSource
    start: int
    end: int
    new_text: str
    site: EditSite | None


def make_plan(
    changes: Iterable[SourceChange],
    sources: ReleaseSources,
    release: str,
    known: ToggleStatus | None = None,
) -> PatchPlan:
    """Plan these changes of a release; an error names the change that cannot be made.

    `known`: the status of one of the toggles there, which need not be found again.
    """
    chosen = list(dict.fromkeys(changes))
    refuse_conflicting_changes(chosen)
    by_module: dict[str, list[_PlannedEdit]] = defaultdict(list)
    for change in chosen:
        for edit in _iterate_edits(change, sources, release, known):
            by_module[edit.source.module].append(edit)
    modules = tuple(_patch_module(edits) for edits in by_module.values())
    return PatchPlan(release, tuple((c.id, c.verb, c.title) for c in chosen), modules)


def refuse_conflicting_changes(changes: Iterable[SourceChange]) -> None:
    """Raise PatchConflictError if one toggle is requested in two directions."""
    change_by_id: dict[str, SourceChange] = {}
    for change in changes:
        known_change = change_by_id.setdefault(change.id, change)
        if known_change != change:
            raise PatchConflictError(
                f"toggle {change.id} is requested in two directions: "
                f"{known_change.verb} and {change.verb}"
            )


def _iterate_edits(
    change: SourceChange, sources: ReleaseSources, release: str, known: ToggleStatus | None
) -> Iterator[_PlannedEdit]:
    if isinstance(change, PlacedFault):
        source = sources.read(change.target.module)
        if source is None or source.text[change.start : change.end] != change.before:
            raise ToggleNotApplicableError(
                f"{change}: the source of {change.target} has changed since the fault was generated"
            )
        yield _PlannedEdit(
            change, change.target, source, change.start, change.end, change.after, None
        )
        return
    status = known
    if status is None or status.toggle is not change.toggle:
        status = find_toggle_status(change.toggle, sources)
    _refuse_wrong_state(change, status, release)
    for site in status.sites:
        start, end = site.match.start, site.match.end
        yield _PlannedEdit(
            change, site.target, site.source, start, end, _render_edit(change, site), site
        )


def _refuse_wrong_state(choice: ToggleChoice, status: ToggleStatus, release: str) -> None:
    if status.state in REQUIRED_STATES[choice.direction]:
        return
    toggle, verb = choice.toggle, choice.direction.value
    why = {
        ToggleState.BUGGY: "that release has the bug; `enable` applies the fix",
        ToggleState.FIXED: "that release has the fix; `revert` removes it",
        ToggleState.ABSENT: "that release does not contain the code",
        ToggleState.STALE: status.problem + (f"\n{status.nearest}" if status.nearest else ""),
    }[status.state]
    raise ToggleNotApplicableError(
        f"cannot {verb} {toggle.id} on SGLang {release}: it is {status.state.value} there: {why}"
    )


def _patch_module(edits: list[_PlannedEdit]) -> PatchedModule:
    source = edits[0].source
    edits = sorted(edits, key=lambda edit: (edit.start, edit.end))
    for edit, following in itertools.pairwise(edits):
        if following.start < edit.end:
            raise PatchConflictError(
                f"{edit.change} and {following.change} change the same code, "
                f"{source.module} line {get_line(source.text, following.start)}"
            )
    text, spans = "", []
    position = 0
    for edit in edits:
        text += source.text[position : edit.start]
        spans.append((edit, len(text), len(text) + len(edit.new_text)))
        text += edit.new_text
        position = edit.end
    text += source.text[position:]
    _check_patched_text(source, text, spans)
    return PatchedModule(
        source.module,
        source.path,
        compute_digest(source.text),
        text,
        tuple(_make_patched_site(edit, text, start, end) for edit, start, end in spans),
    )


def _render_edit(choice: ToggleChoice, site: EditSite) -> str:
    if choice.direction is Direction.OBSERVE:
        return site.source.text[site.match.start : site.match.end]
    side = site.edit.buggy if choice.direction is Direction.REVERT else site.edit.fixed
    form = parse_form(side, site.target.module)
    return form.render(site.match, site.source.text)


def _check_patched_text(
    source: ModuleSource, text: str, spans: list[tuple[_PlannedEdit, int, int]]
) -> None:
    """Check that the patched text compiles, and the invariant of the module for each edit.

    The module's statements that no edit changes hold neither form, so the others suffice; if these
    fail, the whole text is checked, with its own line numbers.
    """
    if all(edit.site is None for edit, *_ in spans):
        return  # faults only: their functions were compiled when they were generated
    if text == source.text:
        return  # observed only
    changes = ", ".join(sorted({str(edit.change) for edit, *_ in spans}))
    if (changed := _cut_changed_statements(source, text, spans)) is not None:
        with contextlib.suppress(PatchError):
            _check_edits(*changed, changes)
            return
    _check_edits(replace(source, text=text), spans, changes)


def _cut_changed_statements(
    source: ModuleSource, text: str, spans: list[tuple[_PlannedEdit, int, int]]
) -> tuple[ModuleSource, list[tuple[_PlannedEdit, int, int]]] | None:
    """Cut the statements of a module's own body that edits change; None where all of it counts."""
    if isinstance(source, CppSource) or any(not edit.target.qualname for edit, *_ in spans):
        return None
    parts: list[str] = []
    moved: list[tuple[_PlannedEdit, int, int]] = []
    length = 0
    for first, end in source.statement_spans:
        inside = [span for span in spans if first <= span[0].start and span[0].end <= end]
        if inside:
            # Edits before it, and those inside of it, have moved its two ends.
            (edit, start, _), (last, _, stop) = inside[0], inside[-1]
            begin = start - (edit.start - first)
            parts.append(text[begin : stop + end - last.end] + "\n")
            moved += [(e, a - begin + length, b - begin + length) for e, a, b in inside]
            length += len(parts[-1])
    if len(moved) < len(spans):  # one reaches over two statements
        return None
    return replace(source, text="".join(parts)), moved


def _check_edits(
    after: ModuleSource, spans: list[tuple[_PlannedEdit, int, int]], changes: str
) -> None:
    _check_syntax(after, changes)
    for edit, start, _ in spans:
        choice, site = edit.change, edit.site
        if site is None or choice.verb == Direction.OBSERVE.value:
            continue
        written, removed = site.edit.buggy, site.edit.fixed
        if choice.verb == Direction.ENABLE.value:
            written, removed = removed, written
        scopes = after.find_scopes(site.target.qualname)
        forms = (parse_form(form, after.module) for form in (written, removed))
        matches, leftovers = (
            [m for s in scopes for m in form.find(s, after.text)] for form in forms
        )
        if (
            [m.start for m in matches] != [start]
            or leftovers
            or not _has_same_bindings(parse_form(written, after.module), matches[0], site.match)
        ):
            raise PatchError(
                f"{choice}: after the edit {site.target} contains the written form {len(matches)} "
                f"times and the other form {len(leftovers)} times, or its metavariables bind other "
                "code: the pattern is too loose"
            )


def _check_syntax(source: ModuleSource, changes: str) -> None:
    """Check that a patched text parses; of C++ only its compiler knows."""
    if isinstance(source, CppSource):
        return
    try:
        compile(source.text, source.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise PatchError(
            f"{source.module} does not compile after {changes}: {error.msg} at line "
            f"{error.lineno}: {(error.text or '').strip()}"
        ) from error


def _has_same_bindings(form: Form, rendered: PatternMatch, original: PatternMatch) -> bool:
    """Guard against precedence: `-$A` with `$A` = `x + y` renders `-x + y`, where `$A` is `x`."""
    return rendered.bindings.keys() == original.bindings.keys() and all(
        form.is_same_code(rendered.bindings[name], code) for name, code in original.bindings.items()
    )


def _make_patched_site(edit: _PlannedEdit, text: str, start: int, end: int) -> PatchedSite:
    line, column = get_position(text, start)
    end_line, end_column = get_position(text, end)
    change = edit.change
    return PatchedSite(change.id, change.verb, str(edit.target), line, column, end_line, end_column)


def get_line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def get_position(text: str, offset: int) -> tuple[int, int]:
    """Return line and column as Python's own parser counts them: the column in UTF-8 bytes."""
    start = text.rfind("\n", 0, offset) + 1
    return get_line(text, offset), len(text[start:offset].encode())


def format_toggle_diff(status: ToggleStatus, sources: ReleaseSources) -> str:
    """Format the change of flipping a toggle as a unified diff; '' if it cannot be flipped."""
    direction = FLIP_DIRECTIONS.get(status.state)
    if direction is None:
        return ""
    diffs = []
    for module in make_plan(
        [ToggleChoice(status.toggle, direction)], sources, str(sources.version)
    ).modules:
        source = sources.read(module.module)
        assert source is not None  # or it would not be in the plan
        path = source.relative_path
        diffs.append(format_diff(source.text, module.text, f"a/{path}", f"b/{path}"))
    return "\n".join(diffs)
