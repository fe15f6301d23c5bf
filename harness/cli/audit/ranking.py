"""The ranks of an audit: by the stored rehearsal of its release, or by one that is made now.

A difference counts what the later release reaches and the earlier did not: by both rehearsals, or,
if the earlier was not rehearsed, in the kernels that changed. Sources that no rehearsal ran, as of
a checkout, are ranked by the newest release's, in the lines that they still have.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from harness.cli import guard_runs, options
from harness.releases import managed_releases
from harness.runs.audit.deployment_ranks import DeploymentFinding, DeploymentRanks, make_ranks
from harness.runs.audit.release_audit import ReleaseAudit
from harness.runs.rehearse.deployment import read_deployments
from harness.store.database import Store
from harness.store.rehearse.values import RehearsalRun
from harness.workers.release_target import ReleaseTarget
from reports.audit import view

REHEARSAL_SECONDS = 600.0  # the limit of one deployment, beside others


def rank_release(audit: ReleaseAudit, *, rehearses: bool, jobs: int = 1) -> ReleaseAudit:
    """Rank a managed release; `rehearses` makes its rehearsal if this code of ours made none."""
    target = _find_target(audit.release) if rehearses else None
    run = _find_rehearsal(audit.release) if target is None else _rehearse_once(target, jobs)
    if run is None:
        _report_missing(audit.release)
        return audit
    ranks = make_ranks(run)
    if not rehearses:  # an audit of some kernels
        ranks = ranks.keep_kernels({kernel.kernel for kernel in audit.kernels})
    return _add_ranks(audit, ranks, is_other_tree=False)


def rank_sources(audit: ReleaseAudit) -> ReleaseAudit:
    """Rank sources by the newest release's rehearsal."""
    ranks = _find_newest_ranks()
    if ranks is None:
        return audit
    ranks = ranks.keep_kernels({kernel.kernel for kernel in audit.kernels})
    return _add_ranks(audit, ranks, is_other_tree=True)


def rank_difference(audit: ReleaseAudit, later: str, earlier: str) -> ReleaseAudit:
    """Rank what a later release has and an earlier had not; `later` is empty for other sources."""
    changed = {kernel.kernel for kernel in audit.kernels}
    if not later:
        ranks = _find_newest_ranks()
        if ranks is None:
            return audit
        return _add_ranks(audit, ranks.keep_kernels(changed), is_other_tree=True)
    run = _find_rehearsal(later)
    if run is None:
        _report_missing(later)
        return audit
    before = _find_rehearsal(earlier)
    if before is None:
        options.report_status(
            f"{earlier} was not rehearsed, so what counts is in kernels that changed since: "
            f"`unfix rehearse --all --release {earlier}` says what its deployments reach"
        )
        ranks = make_ranks(run).keep_kernels(changed)
    else:
        ranks = make_ranks(run).drop_known(make_ranks(before))
    return _add_ranks(audit, ranks, is_other_tree=False)


def _add_ranks(audit: ReleaseAudit, ranks: DeploymentRanks, *, is_other_tree: bool) -> ReleaseAudit:
    def find_line(finding: DeploymentFinding) -> tuple[str, int] | None:
        ends = f"/{PurePosixPath(finding.file)}"
        files = [kernel.file for kernel in audit.kernels if kernel.file.endswith(ends)]
        files += [kernel.file for kernel in audit.kernels if kernel.kernel == finding.kernel]
        for file in dict.fromkeys(files):
            lines = enumerate(view.read_source_lines(file), 1)
            same = [number for number, text in lines if text.strip() == finding.text]
            if same:
                return file, min(same, key=lambda number: abs(number - finding.line))
        return None

    located = ranks.locate(find_line, drops_missing=is_other_tree)
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
    known = Store().rehearse.find_newest_whole(target.name, names, code) if code else None
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
        release=target.name,
        diff="",
        jobs=jobs,
        seconds=REHEARSAL_SECONDS,
        revert=[],
        enable=[],
        toggles=[],
    )
    run, is_stopped = rehearsal.rehearse(target, request, rehearsal.list_deployments(request, []))
    if is_stopped:
        raise KeyboardInterrupt
    return run


def _find_rehearsal(release: str) -> RehearsalRun | None:
    return Store().rehearse.find_newest_whole(release, list(read_deployments()))


def _find_newest_ranks() -> DeploymentRanks | None:
    """Find the rehearsal of the newest release that has one."""
    for release in reversed(managed_releases.list_releases()):
        if run := _find_rehearsal(release.name):
            return make_ranks(run)
    _report_missing(managed_releases.get_newest_release().name)
    return None


def _report_missing(release: str) -> None:
    options.report_status(
        f"no deployment of {release} was rehearsed, so each finding is by arithmetic alone: "
        f"`unfix rehearse --all --release {release}` says which of them a server reaches"
    )
