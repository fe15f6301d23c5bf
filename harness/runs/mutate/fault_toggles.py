"""A fault as a toggle of the registry, so that a guard can be written for it.

The two forms of the toggle have the least code that identifies the place. Candidates are the
changed expression, the expressions around it, its statement, then that statement's neighbours. The
first pair of forms that reverts and enables exactly is the toggle's. Example: of two calls
`cdiv(n, m)` in one function, `b = cdiv(n, m)` identifies the second, since the expression alone has
two places.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from packaging.version import InvalidVersion, Version

from harness.core.cpp_scopes import CppSource
from harness.core.errors import UnfixError
from harness.core.source_scopes import ModuleSource, ReleaseSources
from harness.fixes.matching.toggle_status import locate_edit
from harness.fixes.patch_plan import Direction, ToggleChoice, make_plan
from harness.fixes.patterns import get_indent, remove_indent
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import CodeTarget, DeviceKind, Toggle, ToggleEdit, ToggleVariant
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.fixes.registry.toggle_reader import find_edit_problem
from harness.fixes.registry.toggle_writer import WRAP_COLUMNS
from harness.releases import managed_releases
from harness.runs.mutate import operators
from harness.runs.mutate.cpp_code import (
    CppFunctionCode,
    CppModuleCode,
    OriginalCppFunction,
    find_function,
)
from harness.runs.mutate.function_code import FUNCTIONS, FunctionCode, ModuleCode
from harness.store.mutate.faults import MutationFault

MAX_NEIGHBOURS = 3
MAX_PATTERN_LINES = 60  # limit of one form; a longer one is hard to read and soon stale


class KeepFaultError(UnfixError):
    """An error: no pair of forms identifies the place of a fault in its function."""


@dataclass(frozen=True)
class OverlaySources:
    """A release's sources with another text for one module."""

    base: ReleaseSources
    replacement: ModuleSource

    @property
    def version(self) -> Version | None:
        return self.base.version

    def read(self, module: str) -> ModuleSource | None:
        return self.replacement if module == self.replacement.module else self.base.read(module)

    def modules(self) -> Iterator[str]:
        return self.base.modules()

    def cpp_sources(self) -> Iterator[str]:
        return self.base.cpp_sources()


def build_toggle(
    fault: MutationFault,
    sources: ReleaseSources,
    release: str,
    *,
    range_sources: Sequence[ReleaseSources] | None = None,
    registry: ToggleCatalogue | None = None,
) -> Toggle:
    """Build a toggle that applies this fault to every release with its code.

    Its range is computed from `range_sources`, by default the releases on this machine.
    """
    source = sources.read(fault.module)
    if source is None:
        raise KeepFaultError(f"{release} has no module {fault.module}")
    if source.text[fault.start : fault.end] != fault.before:
        raise KeepFaultError(f"fault {fault.id} was made for another text of {fault.module}")
    spans = list_local_sources() if range_sources is None else range_sources
    for start, end, names in _iterate_spans(source, fault):
        fixed = extract_pattern(source.text, start, end)
        if fixed.count("\n") >= MAX_PATTERN_LINES:
            break
        shift = len(fault.after) - len(fault.before)
        buggy = extract_pattern(fault.apply_to(source.text), start, end + shift)
        for name in names:
            edit = ToggleEdit(fixed=fixed, buggy=buggy, target=f"{fault.module}:{name}")
            if is_reversible_edit(edit, fault, sources, release):
                return _make_toggle(
                    edit,
                    fault,
                    sources,
                    release,
                    spans,
                    registry or toggle_catalogue.load_catalogue(),
                )
    raise KeepFaultError(
        f"fault {fault.id} cannot be kept: no form of at most {MAX_PATTERN_LINES} lines tells its "
        f"place in {fault.qualname} from the others"
    )


def _iterate_spans(
    source: ModuleSource, fault: MutationFault
) -> Iterator[tuple[int, int, list[str]]]:
    if isinstance(source, CppSource):
        function = find_function(CppModuleCode(source), fault)
        return ((*span, [fault.qualname]) for span in iterate_cpp_spans(function, fault))
    return iterate_pattern_spans(
        next(
            f
            for f in ModuleCode(source).functions
            if f.qualname == fault.qualname and is_fault_within(f.module.get_span(f.node), fault)
        ),
        fault,
    )


def iterate_cpp_spans(function: CppFunctionCode, fault: MutationFault) -> Iterator[tuple[int, int]]:
    """Yield the possible spans of a form: the changed code, its statement, and its neighbours."""
    spans = OriginalCppFunction(function).spans
    around = [n for n, span in enumerate(spans) if span[0] < fault.end and fault.start < span[1]]
    yield fault.start, fault.end
    for before in range(MAX_NEIGHBOURS + 1):
        for behind in {0, before}:
            first, last = max(0, around[0] - before), min(len(spans) - 1, around[-1] + behind)
            yield spans[first][0], spans[last][1]
    for behind in range(1, MAX_NEIGHBOURS + 1):
        yield spans[around[0]][0], spans[min(len(spans) - 1, around[-1] + behind)][1]


def list_local_sources() -> list[ReleaseSources]:
    """List the managed releases with sources on this machine, oldest first."""
    return [
        r.open_sources()
        for r in managed_releases.list_releases()
        if r.is_installed or r.any_wheel is not None
    ]


def iterate_pattern_spans(
    function: FunctionCode, fault: MutationFault
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the possible spans of a form, from the changed code outwards, and their scopes."""
    around = [
        node
        for node in ast.walk(function.node)
        if isinstance(node, ast.expr | ast.stmt)
        and not isinstance(node, ast.Slice | ast.Starred)
        and is_fault_within(function.get_span(node), fault)
        and node is not function.node
    ]
    around.sort(key=lambda node: function.get_span(node)[1] - function.get_span(node)[0])
    inner = [node.name for node in reversed(around) if isinstance(node, FUNCTIONS)]
    names = [".".join([function.qualname, *inner[:n]]) for n in range(len(inner) + 1)]
    for node in around:
        if isinstance(node, FUNCTIONS):
            names = names[: len(names) - 1] or [function.qualname]
        yield (*function.get_span(node), names)
        if isinstance(node, ast.stmt):
            for start, end in iterate_neighbour_spans(function, node):
                yield start, end, names


def iterate_neighbour_spans(function: FunctionCode, node: ast.stmt) -> Iterator[tuple[int, int]]:
    """Yield a statement with one to three neighbours before it, after it, or on both sides."""
    outer = function.parents[node]
    for field in ("body", "orelse", "finalbody"):
        block = getattr(outer, field, [])
        if isinstance(block, list) and node in block:
            at = block.index(node)
            start, end = function.get_span(node)
            for many in range(1, MAX_NEIGHBOURS + 1):
                before = function.get_span(block[max(0, at - many)])[0]
                behind = function.get_span(block[min(len(block) - 1, at + many)])[1]
                yield from dict.fromkeys([(before, end), (start, behind), (before, behind)])


def is_fault_within(span: tuple[int, int], fault: MutationFault) -> bool:
    return span[0] <= fault.start and fault.end <= span[1]


def extract_pattern(text: str, start: int, end: int) -> str:
    """Return code as a pattern, without the indentation of its first line."""
    return remove_indent(text[start:end], get_indent(text, start))


def is_reversible_edit(
    edit: ToggleEdit, fault: MutationFault, sources: ReleaseSources, release: str
) -> bool:
    """Return whether the registry accepts this edit, and it reverts and enables exactly."""
    if "$" in edit.fixed + edit.buggy:
        return False  # a pattern would treat `$` as a metavariable
    try:
        if find_edit_problem(edit, fault.module):
            return False
        trial = _make_trial_toggle(edit, fault, "!=0")
        before = sources.read(fault.module)
        assert before is not None
        if isinstance(locate_edit(edit, CodeTarget.parse(edit.target or ""), sources), str):
            return False
        (patched,) = make_plan([ToggleChoice(trial, Direction.REVERT)], sources, release).modules
        if patched.text != fault.apply_to(before.text):
            return False
        overlay = OverlaySources(sources, replace(before, text=patched.text))
        (back,) = make_plan([ToggleChoice(trial, Direction.ENABLE)], overlay, release).modules
    except (UnfixError, RuntimeError, SyntaxError):
        return False  # ast-grep refuses patterns with RuntimeErrors
    return back.text == before.text


def _make_trial_toggle(edit: ToggleEdit, fault: MutationFault, releases: str) -> Toggle:
    operator = operators.load_operators()[fault.operator]
    return Toggle(
        id=f"{fault.operator}-{fault.id}",
        title=operator.title,
        family="kept",
        symptom=operator.symptom,
        devices=(DeviceKind.CPU, DeviceKind.CUDA),
        variants=(ToggleVariant(releases=releases, edits=(edit,)),),
    )


def _make_toggle(
    edit: ToggleEdit,
    fault: MutationFault,
    sources: ReleaseSources,
    release: str,
    range_sources: Sequence[ReleaseSources],
    registry: ToggleCatalogue,
) -> Toggle:
    name = fault.qualname.rpartition(".")[2]
    words = fault.words[0].upper() + fault.words[1:]
    bare = _make_trial_toggle(edit, fault, "!=0")
    plain = ToggleEdit(fixed=edit.fixed, buggy=edit.buggy)
    ranges = list(_iterate_release_ranges(edit, sources, release, range_sources))
    return Toggle(
        id=bare.id,
        title=textwrap.shorten(f"{bare.title}, in {name}", WRAP_COLUMNS, placeholder=" ..."),
        family=registry.guess_family([CodeTarget(fault.module, fault.qualname)]),
        symptom=bare.symptom,
        devices=bare.devices,
        variants=tuple(
            ToggleVariant(releases=one, target=edit.target, edits=(plain,)) for one in ranges
        ),
        why=f"An injected fault, kept from the faults that no suite noticed. {words}.",
    )


def _iterate_release_ranges(
    edit: ToggleEdit, sources: ReleaseSources, release: str, range_sources: Sequence[ReleaseSources]
) -> Iterator[str]:
    """Yield the ranges of releases that have the code, each up to the next one without it."""
    by_version = {s.version: s for s in range_sources if s.version is not None}
    own = sources.version or _parse_version(release)
    if own is None:
        yield ">=0"  # a checkout without a version
        return
    by_version[own] = sources
    target = CodeTarget.parse(edit.target or "")
    first: Version | None = None
    for version in sorted(by_version):
        has_code = not isinstance(locate_edit(edit, target, by_version[version]), str)
        if has_code and first is None:
            first = version
        elif not has_code and first is not None:
            yield f">={first},<{version}"
            first = None
    if first is not None:
        yield f">={first}"


def _parse_version(release: str) -> Version | None:
    try:
        return Version(release)
    except InvalidVersion:
        return None
