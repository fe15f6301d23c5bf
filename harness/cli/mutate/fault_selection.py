"""The faults that a call of `unfix mutate` is about."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.cli import options
from harness.core.errors import UnfixError
from harness.core.source_scopes import ReleaseSources
from harness.fixes.registry.schema import CodeTarget
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.patching import bootstrap
from harness.releases import managed_releases, provisioning
from harness.releases.source_trees import SourceTree
from harness.runs.mutate import (
    changed_lines,
    equivalent_faults,
    fault_generation,
    operators,
    target_selection,
)
from harness.runs.mutate.line_coverage import CoverageRecord
from harness.runs.mutate.mutation_operator import MutationOperator
from harness.store.mutate.faults import GeneratedFaults, MutationFault
from harness.store.mutate.values import TargetCode

WIDE_DIFF_MODULES = 300  # changed modules: in so many, faults are made only where a guard runs


@dataclass(frozen=True)
class MutationDiff:
    """What `--diff` names: the lines that changed, where the release that is run has them."""

    lines: Mapping[str, set[int]]  # by module
    label: str
    ends: str  # its two ends, as what they stood for
    targets: frozenset[CodeTarget] | None  # of these functions alone
    problems: list[str]

    @property
    def is_wide(self) -> bool:
        return self.targets is None and len(self.lines) > WIDE_DIFF_MODULES


def make_diff(
    arguments: argparse.Namespace, tree: SourceTree, catalogue: ToggleCatalogue
) -> MutationDiff | None:
    if not arguments.diff:
        return None
    wanted = None
    if arguments.targets:
        wanted = frozenset(target_selection.select_targets(arguments.targets, tree, catalogue))
    modules = None if wanted is None else {target.module for target in wanted}
    ends = changed_lines.resolve_range(*changed_lines.parse_range(arguments.diff))
    known = {release.name: release for release in managed_releases.list_releases()}
    provisioning.ensure_sources([known[end] for end in ends if end in known], options.report_status)
    newer, lines, label = changed_lines.read_changed_lines(*ends, modules=modules)
    other = [
        name
        for name in lines
        if changed_lines.read_module_text(tree, name) != changed_lines.read_module_text(newer, name)
    ]
    if other and len(other) == len(lines):
        raise UnfixError(
            f"SGLang {tree.name}, which is run, is not what {label} has: install the checkout "
            "where this runs, and say `--release current`"
        )
    problems = [f"{name} is not what {label} has in SGLang {tree.name}, which is run: left out"
                for name in other]  # fmt: skip
    kept = {name: told for name, told in lines.items() if name not in set(other)}
    return MutationDiff(kept, label, "..".join(ends), wanted, problems)


def make_faults(
    arguments: argparse.Namespace,
    tree: SourceTree,
    catalogue: ToggleCatalogue,
    changed: MutationDiff | None = None,
    reaches: CoverageRecord | None = None,
) -> GeneratedFaults:
    """The faults that the call is about, before a sample is taken."""
    kinds = _select_operators(arguments.operators)
    if changed is None:
        return fault_generation.generate_faults(
            target_selection.select_targets(arguments.targets, tree, catalogue), tree, kinds
        )
    run = None if reaches is None else reaches.collect_lines()
    places = changed_lines.list_changed_functions(tree, changed.lines, run)
    if changed.targets is not None:
        places = [place for place in places if place in changed.targets]
    return fault_generation.generate_faults(places, tree, kinds, changed.lines)


def describe_unreached_changes(
    changed: MutationDiff, tree: SourceTree, reaches: CoverageRecord
) -> str:
    """What of a wide diff no guard runs, in a sentence."""
    run = reaches.collect_lines()
    near = {module: lines for module, lines in changed.lines.items() if run.get(module)}
    every, asked = (
        changed_lines.list_changed_functions(tree, near),
        changed_lines.list_changed_functions(tree, near, run),
    )
    return (
        f"of {len(changed.lines)} changed modules guards run code of {len(near)}, and there "
        f"{len(asked)} of {len(every)} changed functions: faults were made in these alone"
    )


def _select_operators(text: str) -> list[MutationOperator] | None:
    known = operators.load_operators()
    names = bootstrap.split_ids(text)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? There are" if near else "there are"
            raise UnfixError(f"no operator is called '{name}': {hint} {', '.join(known)}")
    return [known[name] for name in names] or None


def choose_faults(
    arguments: argparse.Namespace, generated: GeneratedFaults
) -> tuple[MutationFault, ...]:
    """Those that were named, or a sample, in the order of the source."""
    faults = list(generated.faults)
    names = [name for word in arguments.fault for name in bootstrap.split_ids(word)]
    if names:
        faults = [find_fault(name, faults) for name in dict.fromkeys(names)]
    if arguments.limit is not None and arguments.limit < len(faults):
        picked = random.Random(arguments.seed).sample(range(len(faults)), arguments.limit)
        faults = [faults[index] for index in sorted(picked)]
    return tuple(faults)


def find_fault(name: str, faults: Iterable[MutationFault]) -> MutationFault:
    found = [fault for fault in faults if fault.id.startswith(name)]
    if len(found) != 1:
        how_many = "more than one fault is" if found else "no fault of these targets is"
        raise UnfixError(f"{how_many} called {name}: `unfix mutate … --list` shows them")
    return found[0]


def find_families(
    faults: Iterable[MutationFault], sources: ReleaseSources, catalogue: ToggleCatalogue
) -> dict[str, str]:
    """The family of toggles that each target belongs to, the first of several."""
    found: dict[str, str] = {}
    wanted = {fault.target for fault in faults}
    for family in dict.fromkeys(toggle.family for toggle in catalogue):
        # A family that this release has nothing of is a wrong call elsewhere.
        with contextlib.suppress(UnfixError):
            if wanted - found.keys():
                for target in target_selection.select_targets([family], sources, catalogue):
                    found.setdefault(str(target), family)
    return found


def collect_codes(faults: Iterable[MutationFault], sources: ReleaseSources) -> list[TargetCode]:
    """The text of each target, for the page."""
    found: dict[str, TargetCode] = {}
    for fault in faults:
        if fault.target in found:
            continue
        source = sources.read(fault.module)
        assert source is not None
        for scope in source.find_scopes(fault.qualname):
            area = scope.range()
            if area.start.index <= fault.start < area.end.index:
                place = fault.module.replace(".", "/") + ".py"
                first = area.start.line + 1
                code = TargetCode(fault.module, fault.qualname, place, first, scope.text())
                found[fault.target] = code
    return list(found.values())


def describe_stale_equals(arguments: argparse.Namespace, generated: GeneratedFaults) -> list[str]:
    """Faults that are said to be equal and are made no more, where all of a target's were made."""
    if arguments.diff or arguments.operators or arguments.targets:
        return []
    modules = {fault.module for fault in generated.faults}
    return [
        f"{equivalent_faults.get_equivalents_file().name}: {one.id} of {one.target} is made no more: look at it again"
        for one in equivalent_faults.find_vanished_faults(
            equivalent_faults.read_equivalent_faults().values(), generated.faults, modules
        )
    ]
