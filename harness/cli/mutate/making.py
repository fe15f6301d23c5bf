"""The faults that a call of `unfix mutate` is about."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.cli import options
from harness.errors import UnfixError
from harness.mutate import diffs, equal, making, operators, targets
from harness.mutate.operator import Operator
from harness.mutate.reach import Reaches
from harness.patching import boot
from harness.registry.catalogue import Catalogue
from harness.registry.schema import Target
from harness.releases import having, managed
from harness.releases.sources import SourceTree
from harness.store.mutate.faults import Fault, Made
from harness.store.mutate.values import Code
from harness.syntax.scopes import Sources

WIDE = 300  # changed modules: in so many, faults are made only where a guard runs


@dataclass(frozen=True)
class Diff:
    """What `--diff` names: the lines that changed, where the release that is run has them."""

    lines: Mapping[str, set[int]]  # by module
    label: str
    between: str  # its two ends, as what they stood for
    targets: frozenset[Target] | None  # of these functions alone
    problems: list[str]

    @property
    def wide(self) -> bool:
        return self.targets is None and len(self.lines) > WIDE


def diff(arguments: argparse.Namespace, tree: SourceTree, catalogue: Catalogue) -> Diff | None:
    if not arguments.diff:
        return None
    wanted = None
    if arguments.targets:
        wanted = frozenset(targets.named(arguments.targets, tree, catalogue))
    modules = None if wanted is None else {target.module for target in wanted}
    ends = diffs.resolved(*diffs.parse(arguments.diff))
    known = {release.name: release for release in managed.all_releases()}
    having.read([known[end] for end in ends if end in known], options.say)
    newer, lines, label = diffs.changed(*ends, modules=modules)
    other = [name for name in lines if diffs.text_of(tree, name) != diffs.text_of(newer, name)]
    if other and len(other) == len(lines):
        raise UnfixError(
            f"SGLang {tree.name}, which is run, is not what {label} has: install the checkout "
            "where this runs, and say `--release current`"
        )
    problems = [f"{name} is not what {label} has in SGLang {tree.name}, which is run: left out"
                for name in other]  # fmt: skip
    kept = {name: told for name, told in lines.items() if name not in set(other)}
    return Diff(kept, label, "..".join(ends), wanted, problems)


def make(
    arguments: argparse.Namespace,
    tree: SourceTree,
    catalogue: Catalogue,
    changed: Diff | None = None,
    reaches: Reaches | None = None,
) -> Made:
    """The faults that the call is about, before a sample is taken."""
    kinds = _operators(arguments.operators)
    if changed is None:
        return making.make(targets.named(arguments.targets, tree, catalogue), tree, kinds)
    run = None if reaches is None else reaches.lines()
    places = diffs.functions(tree, changed.lines, run)
    if changed.targets is not None:
        places = [place for place in places if place in changed.targets]
    return making.make(places, tree, kinds, changed.lines)


def elsewhere(changed: Diff, tree: SourceTree, reaches: Reaches) -> str:
    """What of a wide diff no guard runs, in a sentence."""
    run = reaches.lines()
    near = {module: lines for module, lines in changed.lines.items() if run.get(module)}
    every, asked = diffs.functions(tree, near), diffs.functions(tree, near, run)
    return (
        f"of {len(changed.lines)} changed modules guards run code of {len(near)}, and there "
        f"{len(asked)} of {len(every)} changed functions: faults were made in these alone"
    )


def _operators(text: str) -> list[Operator] | None:
    known = operators.all()
    names = boot.split(text)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? There are" if near else "there are"
            raise UnfixError(f"no operator is called '{name}': {hint} {', '.join(known)}")
    return [known[name] for name in names] or None


def chosen(arguments: argparse.Namespace, made: Made) -> tuple[Fault, ...]:
    """Those that were named, or a sample, in the order of the source."""
    faults = list(made.faults)
    names = [name for word in arguments.fault for name in boot.split(word)]
    if names:
        faults = [by_id(name, faults) for name in dict.fromkeys(names)]
    if arguments.limit is not None and arguments.limit < len(faults):
        picked = random.Random(arguments.seed).sample(range(len(faults)), arguments.limit)
        faults = [faults[index] for index in sorted(picked)]
    return tuple(faults)


def by_id(name: str, faults: Iterable[Fault]) -> Fault:
    found = [fault for fault in faults if fault.id.startswith(name)]
    if len(found) != 1:
        how_many = "more than one fault is" if found else "no fault of these targets is"
        raise UnfixError(f"{how_many} called {name}: `unfix mutate … --list` shows them")
    return found[0]


def families(faults: Iterable[Fault], sources: Sources, catalogue: Catalogue) -> dict[str, str]:
    """The family of toggles that each target belongs to, the first of several."""
    found: dict[str, str] = {}
    wanted = {fault.target for fault in faults}
    for family in dict.fromkeys(toggle.family for toggle in catalogue):
        # A family that this release has nothing of is a wrong call elsewhere.
        with contextlib.suppress(UnfixError):
            if wanted - found.keys():
                for target in targets.named([family], sources, catalogue):
                    found.setdefault(str(target), family)
    return found


def codes(faults: Iterable[Fault], sources: Sources) -> list[Code]:
    """The text of each target, for the page."""
    found: dict[str, Code] = {}
    for fault in faults:
        if fault.target in found:
            continue
        source = sources.read(fault.module)
        assert source is not None
        for scope in source.scopes(fault.qualname):
            area = scope.range()
            if area.start.index <= fault.start < area.end.index:
                place = fault.module.replace(".", "/") + ".py"
                first = area.start.line + 1
                code = Code(fault.module, fault.qualname, place, first, scope.text())
                found[fault.target] = code
    return list(found.values())


def stale(arguments: argparse.Namespace, made: Made) -> list[str]:
    """Faults that are said to be equal and are made no more, where all of a target's were made."""
    if arguments.diff or arguments.operators or arguments.targets:
        return []
    modules = {fault.module for fault in made.faults}
    return [
        f"{equal.default().name}: {one.id} of {one.target} is made no more: look at it again"
        for one in equal.lost(equal.read().values(), made.faults, modules)
    ]
