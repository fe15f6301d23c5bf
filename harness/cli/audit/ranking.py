"""The ranks of an audit: by the stored rehearsal of its release, or by one that is made now.

A difference of releases counts what the later reaches and the earlier did not: by both rehearsals,
or, if the earlier was not rehearsed, in the kernels that changed, without the lines that the
earlier's sources have as well.

Sources that no rehearsal ran, as of a checkout, are ranked by the newest release's, in the lines
that they still have. That rehearsal says nothing of what these sources add. So a finding by
arithmetic counts there if the earlier tree lacks it: the other end of a difference, or the release
that was rehearsed. Of a difference the lines drop out that the earlier tree has as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path, PurePosixPath

from harness.cli import guard_runs, options
from harness.core.outcomes import RunStatus
from harness.releases import managed_releases
from harness.runs.audit.deployment_ranks import DeploymentFinding, DeploymentRanks, make_ranks
from harness.runs.audit.findings import FindingKey
from harness.runs.audit.function_lines import SourceLines, count_lines, find_function
from harness.runs.audit.kernel_targets import is_targeted
from harness.runs.audit.release_audit import ReleaseAudit
from harness.runs.rehearse.deployment import read_deployments
from harness.store.database import Store
from harness.store.rehearse.table import RehearsalTable
from harness.store.rehearse.values import RehearsalRun
from harness.workers.release_target import ReleaseTarget
from reports.audit import view
from reports.shared.formatting import shorten_path

REHEARSAL_SECONDS = 600.0  # the limit of one deployment, beside others


def is_release(name: str) -> bool:
    """Return whether a name is a managed release's, which can be rehearsed under that name."""
    return name in {release.name for release in managed_releases.list_known_releases()}


def rank_release(audit: ReleaseAudit, *, rehearses: bool, jobs: int = 1) -> ReleaseAudit:
    """Rank a managed release; `rehearses` makes its rehearsal if this code of ours made none."""
    target = _find_target(audit.release) if rehearses else None
    run = _find_rehearsal(audit.release) if target is None else _rehearse_once(target, jobs)
    if run is None:
        _report_missing(audit.release)
        return audit
    ranked = _add_ranks(audit, make_ranks(run))
    return ranked if rehearses else _keep_kernels(ranked)  # an audit of some kernels


def rank_sources(audit: ReleaseAudit, find_new: Callable[[str], Set[FindingKey]]) -> ReleaseAudit:
    """Rank sources by the newest release's rehearsal, and count what that release lacks.

    `find_new` finds the findings by arithmetic that are not in a release.
    """
    ranks = _find_newest_ranks()
    if ranks is None:
        return audit
    ranked = _keep_kernels(_add_ranks(audit, ranks, is_other_tree=True))
    new = find_new(ranks.release) if ranked.possible else frozenset()
    return replace(ranked, unrehearsed=frozenset(new))


def rank_new_sources(audit: ReleaseAudit, earlier: Path) -> ReleaseAudit:
    """Rank what sources have that those of an earlier tree, at a location, have not."""
    ranked = rank_sources(audit, lambda _: {finding.key for finding in audit.findings})
    return ranked if ranked.ranks is None else _drop_old_lines(ranked, earlier)


def _drop_old_lines(audit: ReleaseAudit, earlier: Path) -> ReleaseAudit:
    """Drop of a difference's ranks the lines that an earlier tree has as often."""
    before = SourceLines(earlier)

    def is_new(line: DeploymentFinding) -> bool:
        if audit.find_by_arithmetic(line):  # each finding of a difference is new
            return True
        text = line.key[2]
        lines = view.read_source_lines(line.file)
        function = find_function(lines, line.line)
        known = before.count_lines(shorten_path(line.file), function, text)
        return not function or count_lines(lines, function, text) > known

    assert audit.ranks is not None
    return replace(audit, ranks=audit.ranks.keep_lines(is_new))


def rank_difference(
    audit: ReleaseAudit,
    later: str,
    earlier: str,
    targets: Sequence[str] = (),
    find_sources: Callable[[str], Path | None] = lambda _: None,
) -> ReleaseAudit:
    """Rank what a later release has and an earlier had not, in the kernels of the targets.

    `find_sources` finds the earlier's, which are read if it was not rehearsed.
    """
    run = _find_rehearsal(later)
    if run is None:
        _report_missing(later)
        return audit
    before = _find_rehearsal(earlier)
    if before is None:
        command = f": `unfix rehearse --all --release {earlier}` says what its deployments reach"
        sources = find_sources(earlier)
        options.report_status(
            f"{earlier} was not rehearsed, so what counts is "
            f"{'new lines' if sources else 'lines'} of kernels that changed since"
            f"{command if is_release(earlier) else ''}"
        )
        ranked = _keep_kernels(_add_ranks(audit, make_ranks(run)))
        return _drop_old_lines(ranked, sources) if sources else ranked
    ranks = make_ranks(run).drop_known(make_ranks(before))
    return _add_ranks(
        audit, ranks.keep_lines(lambda line: is_targeted(line.module, line.kernel, targets))
    )


def _keep_kernels(audit: ReleaseAudit) -> ReleaseAudit:
    """Keep of the ranks the kernels of the audit."""
    assert audit.ranks is not None
    kernels = {(kernel.module, kernel.kernel) for kernel in audit.kernels}
    return replace(audit, ranks=audit.ranks.keep_kernels(kernels))


def _add_ranks(
    audit: ReleaseAudit, ranks: DeploymentRanks, *, is_other_tree: bool = False
) -> ReleaseAudit:
    def find_lines(finding: DeploymentFinding) -> tuple[str, list[tuple[str, int]]]:
        same_kernels = [kernel for kernel in audit.kernels if kernel.kernel == finding.kernel]
        known = [kernel for kernel in same_kernels if kernel.module == finding.module]
        if is_other_tree and not known and len(same_kernels) == 1:
            moved = (same_kernels[0].module, finding.kernel) not in ranks.kernels
            known = same_kernels if moved else []
        ends = f"/{PurePosixPath(finding.file)}"
        files = [kernel.file for kernel in audit.kernels if kernel.file.endswith(ends)]
        files += [kernel.file for kernel in known]
        module = known[0].module if known else finding.module
        for file in dict.fromkeys(files):
            lines = enumerate(view.read_source_lines(file), 1)
            equal = [number for number, text in lines if " ".join(text.split()) == finding.key[2]]
            if equal:
                equal.sort(key=lambda number: abs(number - finding.line))
                return module, [(file, number) for number in equal]
        return module, []

    located = ranks.locate(find_lines, drops_missing=is_other_tree)
    if is_other_tree:
        options.report_status(
            f"ranked by the rehearsal of {ranks.release}, in the lines that {audit.release} has"
        )
    return replace(audit, ranks=located)


def _find_target(release: str) -> ReleaseTarget | None:
    """Find the installed release of this name; an audit installs none."""
    known = {one.name: one for one in managed_releases.list_known_releases()}
    if release not in known or not known[release].is_ready:
        return None
    [target] = guard_runs.prepare_targets([release], only_ready=True)
    return target


def _rehearse_once(target: ReleaseTarget, jobs: int) -> RehearsalRun:
    """Return the rehearsal that this code of ours made of the fixed set, or make it."""
    from harness.cli.rehearse import command as rehearsal
    from harness.runs.rehearse.request import RehearseRequest

    names = list(read_deployments())
    code = guard_runs.digest_lane_code(target, [])
    known = RehearsalTable(Store()).find_newest_whole(target.name, names, code) if code else None
    if known is not None:
        return known
    options.report_status(
        f"rehearsing {len(names)} deployments of {target.name} once, which takes some minutes; "
        "`--no-rehearsal` lists every finding by arithmetic instead"
    )
    request = RehearseRequest(
        models=[],
        config=None,
        gpu=None,
        gpus=None,
        all=True,
        thresholds=True,
        all_layers=False,
        release=target.name,
        diff="",
        jobs=jobs,
        seconds=REHEARSAL_SECONDS,
        revert=[],
        enable=[],
        toggles=[],
    )
    deployments = rehearsal.list_deployments(request, [])
    run = rehearsal.rehearse_release(target, request, deployments)
    if run.status is not RunStatus.FINISHED:
        raise KeyboardInterrupt
    return run


def _find_rehearsal(release: str) -> RehearsalRun | None:
    return RehearsalTable(Store()).find_newest_whole(release, list(read_deployments()))


def _find_newest_ranks() -> DeploymentRanks | None:
    """Find the rehearsal of the newest release that has one."""
    for release in reversed(managed_releases.list_releases()):
        if run := _find_rehearsal(release.name):
            return make_ranks(run)
    _report_missing(managed_releases.get_newest_release().name)
    return None


def _report_missing(release: str) -> None:
    wanted = set(read_deployments())
    runs = [run for run in RehearsalTable(Store()).list_runs() if run.release == release]
    some = {name for run in runs if run.status == "finished" for name in run.planned}
    rehearsed = (
        f"{len(some & wanted)} of the {len(wanted)} deployments of `unfix rehearse --all` are"
        if some
        else "no deployment is"
    )
    options.report_status(
        f"{rehearsed} rehearsed on {release}, so each finding is by arithmetic alone: "
        f"`unfix rehearse --all --release {release}` says which of them a server reaches"
    )
