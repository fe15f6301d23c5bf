"""What changed between two releases for a deployment, in numbers.

Example: the decode scratch of 0.5.23 is 2.1 GB larger than that of 0.5.20, `_fwd_kernel` comes to
12 % of 2^31 and came to 3 %.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from harness.store.rehearse.values import (
    INT32_LIMIT,
    DeploymentChange,
    DeploymentResult,
    FindingRank,
    RehearsalFinding,
    RehearsalRun,
    RehearsedLaunch,
)

_SMALLEST_BYTES = 1 << 27  # smaller changes of memory are not worth a line
_SMALLEST_GROWTH = 1.1  # of the largest 32-bit integer in a kernel's addresses
_SMALLEST_EXTENT = INT32_LIMIT // 1000


def compare_runs(before: RehearsalRun, after: RehearsalRun) -> list[DeploymentChange]:
    """Compare the deployments that both runs rehearsed, the worse changes first."""
    known = {deployment.name: deployment for deployment in before.deployments}
    changes = [
        change
        for deployment in after.deployments
        if deployment.name in known
        for change in compare_deployments(known[deployment.name], deployment)
    ]
    return sorted(changes, key=lambda change: not change.is_worse)


def compare_deployments(
    before: DeploymentResult, after: DeploymentResult
) -> Iterator[DeploymentChange]:
    name = after.name
    if before.refusal != after.refusal:
        yield DeploymentChange(
            name,
            "starts",
            before.refusal or "yes",
            after.refusal or "yes",
            is_worse=bool(after.refusal),
            is_broken=bool(after.refusal),
        )
    if before.refusal or after.refusal:
        return
    for setting in sorted(before.settings.keys() | after.settings.keys()):
        old, new = before.settings.get(setting, 0), after.settings.get(setting, 0)
        if old != new:
            yield DeploymentChange(name, setting, f"{old:,}", f"{new:,}")
    yield from _compare_memory(before, after)
    yield from _compare_kernels(before, after)
    yield from _compare_launches(before, after)
    yield from _compare_operators(before, after)
    yield from _compare_failures(before, after)
    old_findings = {_make_key(finding): finding for finding in before.findings}
    new_findings = {_make_key(finding): finding for finding in after.findings}
    for key in new_findings.keys() - old_findings.keys():
        finding = new_findings[key]
        yield DeploymentChange(
            name,
            _name_finding(finding),
            "",
            finding.headline,
            is_worse=True,
            is_broken=finding.rank is FindingRank.REACHABLE,
        )
    for key in old_findings.keys() - new_findings.keys():
        yield DeploymentChange(
            name, _name_finding(old_findings[key]), old_findings[key].headline, ""
        )


def _make_key(finding: RehearsalFinding) -> tuple[str, ...]:
    """Make what a finding is known by from release to release.

    Modules move, and in a batch that does not fit another tensor may be the first one.
    """
    where = (finding.kernel.rpartition(":")[2], finding.text or finding.headline)
    return finding.rank, finding.kind, *(where if finding.kernel else (finding.phase,))


def _find_failed(*results: DeploymentResult) -> set[str]:
    """Find the batches that an error ended early in one of the runs: their launches are not all."""
    return {phase.name for result in results for phase in result.phases if phase.failure}


def _name_finding(finding: RehearsalFinding) -> str:
    return f"{finding.rank} finding of {finding.phase}"


def _compare_failures(
    before: DeploymentResult, after: DeploymentResult
) -> Iterator[DeploymentChange]:
    """Compare the batches that an error ended early."""
    old = {phase.name: phase.failure for phase in before.phases}
    for phase in after.phases:
        failure = old.get(phase.name, "")
        if phase.failure != failure:
            yield DeploymentChange(
                after.name,
                f"batch {phase.name}",
                failure or "runs",
                phase.failure or "runs",
                is_worse=bool(phase.failure),
                is_broken=bool(phase.failure) and not failure,
            )


def _compare_memory(
    before: DeploymentResult, after: DeploymentResult
) -> Iterator[DeploymentChange]:
    sizes = [
        (f"memory of {part}", before.memory.get(part, 0), after.memory.get(part, 0))
        for part in sorted(before.memory.keys() | after.memory.keys())
    ]
    old_peaks = {phase.name: phase.peak for phase in before.phases}
    sizes += [
        (f"peak of {phase.name}", old_peaks[phase.name], phase.peak)
        for phase in after.phases
        if phase.name in old_peaks
    ]
    for what, old, new in sizes:
        if abs(new - old) >= _SMALLEST_BYTES:
            words = f"{old / 1e9:,.2f} GB", f"{new / 1e9:,.2f} GB"
            yield DeploymentChange(after.name, what, *words, is_worse=new > old)


def _compare_kernels(
    before: DeploymentResult, after: DeploymentResult
) -> Iterator[DeploymentChange]:
    """Compare kernels by name: a release moves modules."""
    old, new = (
        {kernel.rpartition(":")[2]: launch for kernel, launch in result.kernels.items()}
        for result in (before, after)
    )
    failed = _find_failed(before, after)
    for kernel in sorted(new.keys() ^ old.keys()):
        if not _list_batches(kernel, before, after) - failed:
            continue
        was, now = (_describe_kernel(kernel, result) for result in (before, after))
        yield DeploymentChange(after.name, f"kernel {kernel}", was, now)
    for kernel in sorted(old.keys() & new.keys()):
        least, most = old[kernel].extent, new[kernel].extent
        grew = most > _SMALLEST_GROWTH * least and most >= _SMALLEST_EXTENT
        shrank = least > _SMALLEST_GROWTH * most and least >= _SMALLEST_EXTENT
        if grew or shrank:
            words = f"{least / INT32_LIMIT:.1%} of 2^31", f"{most / INT32_LIMIT:.1%} of 2^31"
            yield DeploymentChange(after.name, f"nearness of {kernel}", *words, is_worse=grew)


def _list_batches(kernel: str, *results: DeploymentResult) -> set[str]:
    """List the batches in which a kernel is launched."""
    return {
        launch.phase.partition(": ")[0]
        for result in results
        for launch in result.launches
        if launch.kernel_name == kernel
    }


def _describe_kernel(kernel: str, result: DeploymentResult) -> str:
    """Describe how often a deployment launches a kernel, and in which batches."""
    launches = [launch for launch in result.launches if launch.kernel_name == kernel]
    if not launches:
        return "not launched"
    batches = ", ".join(dict.fromkeys(launch.phase for launch in launches))
    count = sum(launch.count for launch in launches)
    return f"{count:,} {'launch' if count == 1 else 'launches'}: {batches}"


def _compare_launches(
    before: DeploymentResult, after: DeploymentResult
) -> Iterator[DeploymentChange]:
    """Compare how a batch launches a kernel: how often, its grid, and the shapes it is given.

    A kernel that one batch launches in several ways is compared by its number of launches alone.
    One that only one of the runs launches in a batch of both has 0 launches in the other; one that
    a whole run does not launch is compared before.
    """
    old, new = _group_launches(before), _group_launches(after)
    in_both = {kernel for _, kernel in old} & {kernel for _, kernel in new}
    common = {phase.name for phase in before.phases} & {phase.name for phase in after.phases}
    common -= _find_failed(before, after)
    for key in sorted(old.keys() | new.keys()):
        phase, kernel = key
        if phase.partition(": ")[0] not in common or kernel not in in_both:
            continue
        where = f"{kernel} of {phase}"
        counts = [sum(launch.count for launch in group[key]) for group in (old, new)]
        if counts[0] != counts[1]:
            was, now = (f"{count:,}" for count in counts)
            yield DeploymentChange(after.name, f"launches of {where}", was, now)
        if len(old[key]) != 1 or len(new[key]) != 1:
            continue
        (earlier,), (later,) = old[key], new[key]
        was, now = (" x ".join(map(str, launch.grid)) for launch in (earlier, later))
        if was != now:
            yield DeploymentChange(after.name, f"grid of {where}", was, now)
        for name in sorted(earlier.arguments.keys() & later.arguments.keys()):
            values = earlier.arguments[name], later.arguments[name]
            if values[0] != values[1]:
                yield DeploymentChange(after.name, f"{name} of {where}", *values)


def _group_launches(result: DeploymentResult) -> dict[tuple[str, str], list[RehearsedLaunch]]:
    """Group launches by their batch and kernel; modules move from release to release."""
    groups: dict[tuple[str, str], list[RehearsedLaunch]] = defaultdict(list)
    for launch in result.launches:
        groups[launch.phase, launch.kernel_name].append(launch)
    return groups


def _compare_operators(
    before: DeploymentResult, after: DeploymentResult
) -> Iterator[DeploymentChange]:
    """Compare the calls of CUDA operators, checked or not, and why some are not.

    Those of a batch that ended early are not compared.
    """
    old, new = before.operator_calls, after.operator_calls
    if (failed := _find_failed(before, after)) and old != new:
        words = f"an error ended {', '.join(sorted(failed))} early"
        yield DeploymentChange(after.name, "calls of CUDA operators", "not compared", words)
        return
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            was, now = (f"{group.get(name, 0):,}" for group in (old, new))
            yield DeploymentChange(after.name, f"calls of {name}", was, now)
    if before.calls and after.calls:  # an older record does not say which ones are checked
        for name in sorted(old.keys() & new.keys()):
            was, now = (_describe_causes(name, result) for result in (before, after))
            if was != now:
                yield DeploymentChange(after.name, f"checks of {name}", was, now)


def _describe_causes(name: str, result: DeploymentResult) -> str:
    """Describe why calls of an operator are not checked."""
    causes = sorted({operator.cause for operator in result.operators if operator.name == name})
    return f"not checked: {', '.join(causes)}" if causes else "checked"
