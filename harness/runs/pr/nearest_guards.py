"""The guard that comes nearest to a fault that none detects.

A guard that runs the fault's line and passes is nearest; then one that runs another line of its
function, the closer the nearer; then one that runs another line of its module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.core.outcomes import Verdict
from harness.core.source_scopes import ReleaseSources
from harness.runs.mutate import fault_outcomes
from harness.runs.mutate.function_code import ModuleCode
from harness.runs.mutate.line_coverage import GuardCoverage
from harness.store.mutate.faults import MutationFault
from harness.store.mutate.values import FaultResult
from harness.store.pr.part_results import UnnoticedFault

UNNOTICED = (Verdict.SURVIVED, Verdict.UNREACHED)


def make_unreached_results(
    faults: Sequence[MutationFault], sources: ReleaseSources
) -> list[FaultResult]:
    """Make the results of faults of which no guard runs a line."""
    results = []
    for fault in faults:
        source = sources.read(fault.module)
        assert source is not None
        diff = fault_outcomes.format_fault_diff(fault, source.text)
        why = "no guard runs its lines"
        results.append(FaultResult(fault, Verdict.UNREACHED, why=why, diff=diff))
    return results


def list_unnoticed_faults(
    results: Sequence[FaultResult],
    coverages: Sequence[GuardCoverage],
    sources: ReleaseSources,
    locate: Callable[[str], str],
    remark: str = "",
) -> list[UnnoticedFault]:
    """List the faults that ran, or could have, without a guard that noticed; survivors first.

    `locate` finds a module's path in the checkout; `remark` says of which sources the guards' lines
    are, if not of those with the fault.
    """
    unnoticed = []
    for result in sorted(results, key=lambda one: one.fate is Verdict.UNREACHED):
        if result.fate in UNNOTICED:
            nearest, nearness = find_nearest_guard(result, coverages, sources)
            fault = result.fault
            unnoticed.append(
                UnnoticedFault(
                    id=fault.id,
                    target=fault.target,
                    path=locate(fault.module),
                    line=fault.line,
                    words=fault.words,
                    diff=result.diff,
                    outcome=result.fate.value,
                    nearest=nearest,
                    nearness=nearness + (remark if nearest else ""),
                )
            )
    return unnoticed


def find_nearest_guard(
    result: FaultResult, coverages: Sequence[GuardCoverage], sources: ReleaseSources
) -> tuple[str, str]:
    """Return the nearest guard's name, and how near it comes."""
    if result.passed:
        return result.passed[0], f"runs line {result.fault.line} and passes"
    fault = result.fault
    function = _find_function_lines(fault, sources)
    best: tuple[bool, int, str, int] | None = None  # in the function first, then by distance
    for coverage in coverages:
        for line in coverage.lines.get(fault.module, ()):
            found = (line not in function, abs(line - fault.line), coverage.guard, line)
            best = found if best is None or found < best else best
    if best is None:
        return "", "no guard runs a line of its module"
    outside, _, guard, line = best
    if outside:
        return guard, f"runs line {line} of its module, in another function"
    return guard, f"runs line {line} of the function, and not line {fault.line}"


def _find_function_lines(fault: MutationFault, sources: ReleaseSources) -> range:
    source = sources.read(fault.module)
    for function in ModuleCode(source).functions if source is not None else ():
        if function.qualname == fault.qualname:
            node = function.node
            return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)
