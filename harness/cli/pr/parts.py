"""The parts of a review. Each runs a kind of run on one or both ends, and fills its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from harness.cli import guard_runs, options
from harness.cli.mutate import execution as mutate_execution
from harness.cli.mutate.progress import MutateProgress
from harness.cli.pr import item_parts
from harness.cli.pr.review import Review, make_mutate_request, record_coverage
from harness.cli.process_cleanup import end_processes_on_exit
from harness.cli.prove import execution as prove_execution
from harness.cli.prove.call import ProveCall
from harness.core.cpp_tokens import is_cpp_path
from harness.core.outcomes import Outcome, RunStatus, Verdict
from harness.core.wording import format_count
from harness.fixes import drift
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases, provisioning
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit import exemptions, release_audit
from harness.runs.audit.release_audit import AuditRequest
from harness.runs.mutate import fault_selection
from harness.runs.mutate.fault_selection import MutationDiff
from harness.runs.mutate.line_coverage import GuardCoverage
from harness.runs.mutate.runner import MutationRunner
from harness.runs.pr import (
    changed_guards,
    changed_kernels,
    launch_recording,
    nearest_guards,
    source_change,
    toggle_effects,
)
from harness.runs.pr.toggle_effects import EndStatuses
from harness.store.mutate.table import MutationTable
from harness.store.pr.part_results import NewFinding, get_test_name
from harness.store.pr.table import PrTable
from harness.store.pr.values import PrPart
from harness.store.prove.table import ProveTable
from harness.store.prove.values import CellResult

# Toggles


def find_toggle_changes(review: Review) -> None:
    """Read the states on both ends, by the toggles' files and by those mended for this run."""
    trees = [review.change.base, review.change.head]
    folders = review.request.toggles
    own = drift.survey_drift(list(toggle_catalogue.load_catalogue(folders)), trees)
    guard_runs.mend_stale_toggles(trees, folders)
    review.catalogue = toggle_catalogue.load_catalogue(folders)
    if PrPart.TOGGLES not in review.request.parts:
        return  # another machine reports the toggles
    mended = drift.survey_drift(list(review.catalogue), trees)
    before, after = (
        EndStatuses(
            toggle_effects.index_statuses(own_release.statuses),
            toggle_effects.index_statuses(mended_release.statuses),
        )
        for own_release, mended_release in zip(own.releases, mended.releases, strict=True)
    )
    review.run.toggle_count = len(own.toggles)
    review.run.toggles = toggle_effects.find_toggle_changes(before, after, review.change)
    old, new = (release.upstream_states for release in own.releases)
    broken = [number for number, state in new.items() if (old.get(number), state) == _BREAKS]
    for number in broken:
        reason = own.releases[1].upstream_problems[number]
        review.note(f"SGLang's own revert of #{number} applies no more: {reason}")


_BREAKS = ("applies", "broken")


# Suites


def prove_guards(review: Review) -> None:
    """Prove the guards that run changed lines, on the base unless that is known, and the head."""
    if not review.guards:
        options.report_status("no guard runs a changed line: nothing is proven")
        return
    cells = _prove_cells(review) if review.provable_guards else []
    changes = changed_guards.compare_cells(cells, review.base.name, review.head.name)
    after = _run_on_head(review)
    changed_guards.fill_plain_outcomes(changes, review.coverages, after)
    plain = changed_guards.compare_plain_tests(review.coverages, after, review.guards, changes)
    review.run.guards = changed_guards.sort_changes([*changes, *plain])


def _prove_cells(review: Review) -> list[CellResult]:
    root = Path(guard_runs.resolve_suites([])[1])
    known = _find_known_cells(review)
    targets = [review.head] if known is not None else [review.base, review.head]
    call = ProveCall(
        command="prove",
        usage="",
        words=changed_guards.resolve_nodes(review.provable_guards, root),
        release=[target.name for target in targets],
        profile=review.request.profile,
        jobs=review.request.jobs,
        memory=review.request.memory,
        toggles=review.request.toggles,
    )
    proof = prove_execution.run_proof(call, targets)
    review.run.runs["prove"] = proof.id
    if proof.status is not RunStatus.FINISHED:
        raise KeyboardInterrupt
    for facts in proof.releases:
        for problem in facts.problems:
            review.note(f"{facts.release}: {problem}")
    return [*(known or []), *proof.cells]


def _run_on_head(review: Review) -> list[GuardCoverage]:
    """Run the guards on the head with nothing toggled, those that fail twice; count its lines."""
    coverages = record_coverage(review.request, review.head, review.guards)
    before = {coverage.guard: coverage.outcome for coverage in review.coverages}
    if any(
        coverage.outcome is not before.get(coverage.guard, coverage.outcome)
        for coverage in coverages
    ):
        coverages = record_coverage(review.request, review.head, review.guards, True)
    # A guard that is skipped, or that failed before, compares nothing.
    passing = [one for one in review.coverages if one.outcome is Outcome.PASSED]
    compared = {one.guard for one in passing} & {one.guard for one in coverages}
    for is_head, each in ((False, passing), (True, coverages)):
        for coverage in each:
            if coverage.guard in compared:
                name = get_test_name(coverage.guard)
                review.line_runs.add(is_head, name, coverage.lines)
    for guard, count in changed_guards.count_reached_lines(
        coverages, review.change.new_lines
    ).items():
        review.run.reaching[guard] = max(count, review.run.reaching.get(guard, 0))
    return coverages


def _find_known_cells(review: Review) -> list[CellResult] | None:
    """Return the base's cells of an earlier review, if it proved every guard of this one."""
    wanted = set(review.provable_guards)
    for earlier in reversed(PrTable(review.store).list_runs()):
        same = (earlier.base, earlier.settings.get("code"), earlier.settings.get("profile")) == (
            *(review.base.name, review.run.settings["code"], review.request.profile),
        )
        if not same or "prove" not in earlier.runs or earlier.id == review.run.id:
            continue
        proof = ProveTable(review.store).find(earlier.runs["prove"])
        cells = [cell for cell in proof.cells if cell.release == review.base.name] if proof else []
        names = {get_test_name(cell.guard) for cell in cells if cell.verdict}
        if wanted <= names:
            return [c for c in cells if get_test_name(c.guard) in wanted]
    return None


# Audit


def audit_kernels(review: Review) -> None:
    """Audit the kernels that changed, and keep the findings that the base does not have."""
    base, head = review.change.base, review.change.head
    if not CPU_BASE.is_current():  # the releases' common torch and Triton
        newest = managed_releases.get_newest_release()
        provisioning.ensure_installed([newest], options.report_status)
    request = AuditRequest(
        location=source_change.get_location(head),
        release=f"{base.name}..{head.name}",
        jobs=guard_runs.choose_job_count("cpu", review.request.jobs),
        earlier_location=source_change.get_location(base),
    )
    audit = release_audit.audit_release(request, options.report_status)
    audit = audit.apply_exemptions(exemptions.read_exemptions(exemptions.find_default_path()))
    # A kernel that Triton cannot load always counts as changed: here only if its module changed.
    review.run.audited = sum(
        kernel.verdict is not Verdict.CANNOT_TELL or kernel.module in review.change.modules
        for kernel in audit.kernels
    )
    review.run.findings = [
        NewFinding(
            kernel=f"{finding.module}:{finding.kernel}",
            path=review.change.locate(finding.module),
            line=finding.line,
            kind=finding.kind.value,
            text=finding.text,
            condition=finding.condition,
            confirmed=finding.confirmed,
        )
        for finding in audit.findings
    ]


# Kernels


def compare_kernels(review: Review) -> None:
    """Run changed kernels of both ends on launches that guards and rows make on the base."""
    capture = review.capture
    if capture is None:
        review.run.kernels = [kernel.change for kernel in review.listed_kernels]
        return
    if capture.guards and not capture.is_done:
        options.report_status(
            f"{format_count(len(capture.guards), 'guard')} of changed kernels: their launches are "
            "recorded on the base"
        )
        with end_processes_on_exit():
            launch_recording.capture_launches(
                capture.plan, capture.guards, capture.folder, options.report_status
            )
    review.run.kernels = changed_kernels.compare_kernels(review.change, capture.folder)


# Faults


def make_faults(review: Review) -> None:
    """Make faults in changed lines, and run the guards that run these on the head."""
    request = make_mutate_request(review.request, review.head, review.provable_guards)
    head, run = review.head, review.run
    if not review.seconds_left:
        review.note("no fault was tried: nothing is left of --budget")
        return
    lines = {name: new for name, new in review.change.new_lines.items() if not is_cpp_path(name)}
    diff = MutationDiff(lines, f"{run.base}..{run.head}", None, [])
    generated = fault_selection.make_faults(request, head.sources, review.catalogue, diff)
    chosen = fault_selection.choose_faults(request, generated)
    run.faults_made = len(generated.faults)
    if not chosen:
        return  # the report has a sentence for that
    if not review.request.fault_limit:
        review.note("no fault was tried: --faults is 0")
        return
    mutation = mutate_execution.make_run(request, head)
    mutation.fault_count, mutation.planned = len(generated.faults), len(chosen)
    mutation.ids = [fault.id for fault in chosen]
    mutation.settings["between"] = diff.ends
    mutation.codes = fault_selection.collect_codes(chosen, head.sources)
    coverages, remark = review.coverages, " (of the base)"
    if review.provable_guards:
        plan = dataclasses.replace(mutate_execution.make_plan(request, head), faults=chosen)
        with end_processes_on_exit(), MutateProgress(mutation) as progress:
            runner = MutationRunner(plan, mutation, MutationTable(review.store), progress)
            runner.execute()
        run.runs["mutate"] = mutation.id
        coverages, remark = list(runner.coverage.guards.values()), ""
    else:
        mutation.fates = nearest_guards.make_unreached_results(chosen, head.sources)
    run.fault_counts = mutation.counts
    run.faults = nearest_guards.list_unnoticed_faults(
        mutation.fates, coverages, head.sources, review.change.locate, remark
    )


PARTS: dict[PrPart, Callable[[Review], None]] = {
    PrPart.TOGGLES: lambda review: None,  # read before all parts
    PrPart.SUITES: prove_guards,
    PrPart.ZOO: item_parts.run_zoo,
    PrPart.KERNELS: compare_kernels,
    PrPart.REHEARSE: item_parts.rehearse_deployments,
    PrPart.AUDIT: audit_kernels,
    PrPart.FAULTS: make_faults,
}
