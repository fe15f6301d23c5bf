"""A fault as a toggle of the registry, ready for a guard to be written.

The change is told as two forms of as little code as will do: the changed expression, what it stands
in, its statement, its neighbours too. The first that passes every check of the registry is taken.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from harness.errors import UnfixError
from harness.matching.states import locate
from harness.mutate import operators
from harness.mutate.code import FUNCTIONS, FunctionCode, ModuleCode
from harness.patching.plan import Choice, Direction, make
from harness.registry import catalogue
from harness.registry.catalogue import Catalogue
from harness.registry.files import edit_problem
from harness.registry.schema import Device, Edit, Target, Toggle, Variant
from harness.registry.writing import WIDTH
from harness.releases import managed
from harness.store.mutate.faults import Fault
from harness.syntax.patterns import indent_at, unindent
from harness.syntax.scopes import ModuleSource, Sources

NEIGHBOURS = 3
LONGEST = 60  # lines of one form: nobody reads more, and any edit in them makes the toggle stale


class CannotKeep(UnfixError):
    """A fault that no pair of forms tells from the rest of its function."""


@dataclass(frozen=True)
class Changed:
    """A release's sources with one module's text replaced."""

    sources: Sources
    source: ModuleSource

    @property
    def version(self) -> Version | None:
        return self.sources.version

    def read(self, module: str) -> ModuleSource | None:
        return self.source if module == self.source.module else self.sources.read(module)

    def modules(self) -> Iterator[str]:
        return self.sources.modules()


def toggle_of(
    fault: Fault,
    sources: Sources,
    release: str,
    *,
    others: Sequence[Sources] | None = None,
    registry: Catalogue | None = None,
) -> Toggle:
    """A toggle that takes this fault in and out of every release that has its code.

    `others` are the releases that its range is read from; those on this machine, if not said.
    """
    source = sources.read(fault.module)
    if source is None:
        raise CannotKeep(f"{release} has no module {fault.module}")
    if source.text[fault.start : fault.end] != fault.before:
        raise CannotKeep(f"fault {fault.id} was made for another text of {fault.module}")
    code = ModuleCode(source)
    function = next(
        f
        for f in code.functions
        if f.qualname == fault.qualname and covers(f.module.span(f.node), fault)
    )
    spans = here() if others is None else others
    for start, end, names in places(function, fault):
        fixed = cut(source.text, start, end)
        if fixed.count("\n") >= LONGEST:
            break
        shift = len(fault.after) - len(fault.before)
        buggy = cut(fault.applied(source.text), start, end + shift)
        for name in names:
            edit = Edit(fixed=fixed, buggy=buggy, target=f"{fault.module}:{name}")
            if holds(edit, fault, sources, release):
                return _toggle(edit, fault, sources, release, spans, registry or catalogue.load())
    raise CannotKeep(
        f"fault {fault.id} cannot be kept: no form of at most {LONGEST} lines tells its place in "
        f"{fault.qualname} from the others"
    )


def here() -> list[Sources]:
    """The managed releases whose sources are on this machine, oldest first."""
    return [r.sources() for r in managed.all_releases() if r.installed or r.wheel is not None]


def places(function: FunctionCode, fault: Fault) -> Iterator[tuple[int, int, list[str]]]:
    """What a form may hold, from the changed code outwards, with the scopes to look in."""
    around = [
        node
        for node in ast.walk(function.node)
        if isinstance(node, ast.expr | ast.stmt)
        and not isinstance(node, ast.Slice | ast.Starred)
        and covers(function.span(node), fault)
        and node is not function.node
    ]
    around.sort(key=lambda node: function.span(node)[1] - function.span(node)[0])
    inner = [node.name for node in reversed(around) if isinstance(node, FUNCTIONS)]
    names = [".".join([function.qualname, *inner[:n]]) for n in range(len(inner) + 1)]
    for node in around:
        if isinstance(node, FUNCTIONS):
            names = names[: len(names) - 1] or [function.qualname]
        yield (*function.span(node), names)
        if isinstance(node, ast.stmt):
            for start, end in neighbours(function, node):
                yield start, end, names


def neighbours(function: FunctionCode, node: ast.stmt) -> Iterator[tuple[int, int]]:
    """A statement with those before it, those behind it, and both: one, two, three of them."""
    outer = function.parents[node]
    for field in ("body", "orelse", "finalbody"):
        block = getattr(outer, field, [])
        if isinstance(block, list) and node in block:
            at = block.index(node)
            start, end = function.span(node)
            for many in range(1, NEIGHBOURS + 1):
                before = function.span(block[max(0, at - many)])[0]
                behind = function.span(block[min(len(block) - 1, at + many)])[1]
                yield from dict.fromkeys([(before, end), (start, behind), (before, behind)])


def covers(span: tuple[int, int], fault: Fault) -> bool:
    return span[0] <= fault.start and fault.end <= span[1]


def cut(text: str, start: int, end: int) -> str:
    """A piece of code as a pattern: without the indentation of the line that it begins on."""
    return unindent(text[start:end], indent_at(text, start))


def holds(edit: Edit, fault: Fault, sources: Sources, release: str) -> bool:
    """Whether the registry takes this edit, and both directions give just the two texts."""
    if "$" in edit.fixed + edit.buggy:
        return False  # what a pattern would read as a name of its own
    try:
        if edit_problem(edit):
            return False
        trial = _bare(edit, fault, "!=0")
        before = sources.read(fault.module)
        assert before is not None
        found = locate(edit, Target.parse(edit.target or ""), sources)
        if isinstance(found, str):
            return False
        (there,) = make([Choice(trial, Direction.REVERT)], sources, release).modules
        if there.text != fault.applied(before.text):
            return False
        changed = Changed(sources, ModuleSource(before.module, before.path, there.text))
        (back,) = make([Choice(trial, Direction.ENABLE)], changed, release).modules
    except (UnfixError, RuntimeError, SyntaxError):
        return False  # ast-grep's refusals are RuntimeErrors
    return back.text == before.text


def _bare(edit: Edit, fault: Fault, releases: str) -> Toggle:
    operator = operators.all()[fault.operator]
    return Toggle(
        id=f"{fault.operator}-{fault.id}",
        title=operator.title,
        family="kept",
        symptom=operator.symptom,
        devices=(Device.CPU, Device.CUDA),
        variants=(Variant(releases=releases, edits=(edit,)),),
    )


def _toggle(
    edit: Edit,
    fault: Fault,
    sources: Sources,
    release: str,
    spans: Sequence[Sources],
    registry: Catalogue,
) -> Toggle:
    name = fault.qualname.rpartition(".")[2]
    words = fault.words[0].upper() + fault.words[1:]
    bare = _bare(edit, fault, "!=0")
    plain = Edit(fixed=edit.fixed, buggy=edit.buggy)
    ranges = list(_ranges(edit, sources, release, spans))
    return Toggle(
        id=bare.id,
        title=textwrap.shorten(f"{bare.title}, in {name}", WIDTH, placeholder=" ..."),
        family=registry.family_of([Target(fault.module, fault.qualname)]),
        symptom=bare.symptom,
        devices=bare.devices,
        variants=tuple(Variant(releases=one, target=edit.target, edits=(plain,)) for one in ranges),
        why=f"An injected fault, kept from the faults that no suite noticed. {words}.",
    )


def _ranges(edit: Edit, sources: Sources, release: str, spans: Sequence[Sources]) -> Iterator[str]:
    """The runs of releases that have the code, each up to the next release that has it not."""
    by_version = {s.version: s for s in spans if s.version is not None}
    own = sources.version or _version(release)
    if own is None:
        yield ">=0"  # a checkout that does not say its version
        return
    by_version[own] = sources
    target = Target.parse(edit.target or "")
    first: Version | None = None
    for version in sorted(by_version):
        there = not isinstance(locate(edit, target, by_version[version]), str)
        if there and first is None:
            first = version
        elif not there and first is not None:
            yield f">={first},<{version}"
            first = None
    if first is not None:
        yield f">={first}"


def _version(release: str) -> Version | None:
    try:
        return Version(release)
    except InvalidVersion:
        return None
