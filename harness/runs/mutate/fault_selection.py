"""The faults of a request, from its targets or from the lines of its diff."""

from __future__ import annotations

import contextlib
import difflib
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core.cpp_scopes import CppSource
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
from harness.runs.mutate.cpp_code import CppModuleCode, find_function
from harness.runs.mutate.line_coverage import CoverageRecord
from harness.runs.mutate.mutation_operator import MutationOperator
from harness.runs.mutate.request import MutateRequest
from harness.store.mutate.faults import GeneratedFaults, MutationFault
from harness.store.mutate.values import TargetCode

WIDE_DIFF_MODULES = 300  # above it, only lines that a guard runs get faults


@dataclass(frozen=True)
class MutationDiff:
    """The changed lines of `--diff`, in modules that the release under test has as well."""

    lines: Mapping[str, set[int]]  # by module
    ends: str  # both ends of the range: releases or commits
    targets: frozenset[CodeTarget] | None  # the only functions for faults; None: any
    problems: list[str]

    @property
    def is_wide(self) -> bool:
        return self.targets is None and len(self.lines) > WIDE_DIFF_MODULES


def read_diff(
    request: MutateRequest,
    tree: SourceTree,
    catalogue: ToggleCatalogue,
    report_status: Callable[[str], None],
) -> MutationDiff | None:
    if not request.diff:
        return None
    targets = None
    if request.targets:
        targets = frozenset(target_selection.select_targets(request.targets, tree, catalogue))
    modules = None if targets is None else {target.module for target in targets}
    ends = changed_lines.resolve_range(*changed_lines.parse_range(request.diff))
    releases = {release.name: release for release in managed_releases.list_known_releases()}
    provisioning.ensure_sources([releases[end] for end in ends if end in releases], report_status)
    newer, lines, label = changed_lines.read_changed_lines(*ends, modules=modules)
    different = {
        name
        for name in lines
        if changed_lines.read_module_text(tree, name) != changed_lines.read_module_text(newer, name)
    }
    if different and len(different) == len(lines):
        raise UnfixError(
            f"SGLang {tree.name}, which is run, is not what {label} has: install the checkout "
            "where this runs, and say `--release current`"
        )
    problems = [
        f"{name} is not what {label} has in SGLang {tree.name}, which is run: left out"
        for name in lines
        if name in different
    ]
    same = {name: numbers for name, numbers in lines.items() if name not in different}
    return MutationDiff(same, "..".join(ends), targets, problems)


def make_faults(
    request: MutateRequest,
    tree: SourceTree,
    catalogue: ToggleCatalogue,
    diff: MutationDiff | None = None,
    coverage: CoverageRecord | None = None,
) -> GeneratedFaults:
    """Make the faults of the request, before any sampling."""
    chosen = _select_operators(request.operators)
    if diff is None:
        targets = target_selection.select_targets(request.targets, tree, catalogue)
        return fault_generation.generate_faults(targets, tree, chosen)
    covered_lines = None if coverage is None else coverage.collect_lines()
    targets = changed_lines.list_changed_functions(tree, diff.lines, covered_lines)
    if diff.targets is not None:
        targets = [target for target in targets if target in diff.targets]
    return fault_generation.generate_faults(targets, tree, chosen, diff.lines)


def describe_unreached_changes(
    diff: MutationDiff, tree: SourceTree, coverage: CoverageRecord
) -> str:
    """Describe the part of a wide diff that no guard runs, in a sentence."""
    covered_lines = coverage.collect_lines()
    near = {module: lines for module, lines in diff.lines.items() if covered_lines.get(module)}
    every = changed_lines.list_changed_functions(tree, near)
    reached = changed_lines.list_changed_functions(tree, near, covered_lines)
    return (
        f"of {len(diff.lines)} changed modules guards run code of {len(near)}, and there "
        f"{len(reached)} of {len(every)} changed functions: faults were made in these alone"
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


def choose_faults(request: MutateRequest, generated: GeneratedFaults) -> tuple[MutationFault, ...]:
    """Choose the named faults, or a sample, in the order of the source."""
    faults = list(generated.faults)
    names = [name for word in request.fault for name in bootstrap.split_ids(word)]
    if names:
        faults = [find_fault(name, faults) for name in dict.fromkeys(names)]
    if request.limit is not None and request.limit < len(faults):
        picked = random.Random(request.seed).sample(range(len(faults)), request.limit)
        faults = [faults[index] for index in sorted(picked)]
    return tuple(faults)


def find_fault(name: str, faults: Iterable[MutationFault]) -> MutationFault:
    matches = [fault for fault in faults if fault.id.startswith(name)]
    if len(matches) != 1:
        how_many = "more than one fault is" if matches else "no fault of these targets is"
        raise UnfixError(f"{how_many} called {name}: `unfix mutate … --list` shows them")
    return matches[0]


def find_families(
    faults: Iterable[MutationFault], sources: ReleaseSources, catalogue: ToggleCatalogue
) -> dict[str, str]:
    """Find each target's family of toggles, or the first of several."""
    families: dict[str, str] = {}
    targets = {fault.target for fault in faults}
    for family in dict.fromkeys(toggle.family for toggle in catalogue):
        # A family without a function on this release is an error only if the call names it.
        with contextlib.suppress(UnfixError):
            if targets - families.keys():
                found = target_selection.select_targets([family], sources, catalogue)
                for target in targets.intersection(map(str, found)):
                    families.setdefault(target, family)
    return families


def find_suites(
    families: Collection[str], catalogue: ToggleCatalogue, suites: Path
) -> frozenset[str]:
    """Find the suites with guards of these families: called as one, or naming one of its toggles.

    Example: the guards of the family `req_to_token` stand in `suites/pool_sizing`.
    """
    names = [f'"{toggle.id}"' for toggle in catalogue if toggle.family in families]
    texts = {file: file.read_text(encoding="utf-8") for file in suites.glob("*/test_*.py")}
    found = {file.parent.name for file, text in texts.items() if any(n in text for n in names)}
    return frozenset(found.union(families))


def collect_codes(faults: Iterable[MutationFault], sources: ReleaseSources) -> list[TargetCode]:
    """Return the text of each target, for the page."""
    codes: dict[str, TargetCode] = {}
    for fault in faults:
        if fault.target in codes:
            continue
        source = sources.read(fault.module)
        assert source is not None
        if isinstance(source, CppSource):
            function = find_function(CppModuleCode(source), fault)
            span = (function.definition.first, function.definition.end)
            codes[fault.target] = TargetCode(
                fault.module,
                fault.qualname,
                fault.module,
                function.lines.start,
                function.get_text(span),
            )
            continue
        for scope in source.find_scopes(fault.qualname):
            area = scope.range()
            if area.start.index <= fault.start < area.end.index:
                path = fault.module.replace(".", "/") + ".py"
                codes[fault.target] = TargetCode(
                    fault.module, fault.qualname, path, area.start.line + 1, scope.text()
                )
    return list(codes.values())


def describe_stale_equivalents(request: MutateRequest, generated: GeneratedFaults) -> list[str]:
    """Describe recorded equivalents that no longer appear, if the request covers all families."""
    if request.diff or request.operators or request.targets:
        return []
    modules = {fault.module for fault in generated.faults}
    file = equivalent_faults.get_equivalents_file().name
    return [
        f"{file}: {fault.id} of {fault.target} is made no more: judge it again"
        for fault in equivalent_faults.find_vanished_faults(
            equivalent_faults.read_equivalent_faults().values(), generated.faults, modules
        )
    ]
