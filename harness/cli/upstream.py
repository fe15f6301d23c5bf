"""`unfix upstream`: a finding as a pull request, verified; a fix as a backport."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from harness.cli import guard_runs, options
from harness.cli.prove import guard_needs
from harness.cli.zoo import command as zoo
from harness.core import paths
from harness.core.errors import CommandLineError, UnfixError, UnknownToggleError
from harness.core.outcomes import RunStatus
from harness.findings import finding_files
from harness.findings.schema import Finding
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases, provisioning
from harness.releases.source_trees import SourceTree
from harness.runs.upstream import accuracy, fix_patch, pull_request, verification
from harness.runs.upstream.pull_request import Backport
from harness.runs.upstream.verification import PatchedFinding, Verification, VerifiedState
from harness.runs.zoo.request import ZooRequest
from harness.store.prove import recorded_proofs
from harness.store.zoo.values import ArchitectureResult
from harness.workers.release_target import ReleaseTarget

CARD = "H100"  # that rows of the zoo play


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="findings, or with --onto a toggle"
    )
    parser.add_argument("--all", action="store_true", help="all findings, and an index of them")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder (default: .unfix/upstream)"
    )
    options.add_release(parser)
    parser.add_argument(
        "--onto", metavar="V", help="a backport: SGLang's own fix for a release that lacks it"
    )
    parser.add_argument(
        "--checkout", type=Path, metavar="DIR", help="a checkout that the patch has to fit as well"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="keep what tests do and fixes cost on a GPU, or here what rows of the zoo do",
    )
    options.add_device(parser)
    options.add_json(parser)


@dataclass(frozen=True)
class UpstreamRequest:
    """The arguments of `unfix upstream`."""

    names: list[str]
    all: bool
    out: Path | None
    release: str | None
    onto: str | None
    checkout: Path | None
    record: bool
    device: str
    json: bool
    usage: str

    def __post_init__(self) -> None:
        if bool(self.names) == self.all:
            raise CommandLineError("name a finding, or say --all", self.usage)
        is_alone = len(self.names) == 1 and not (self.release or self.record or self.json)
        if self.onto and not is_alone:
            raise CommandLineError("--onto takes a toggle, --out and --checkout alone", self.usage)

    @property
    def folder(self) -> Path:
        return self.out or paths.state_folder() / "upstream"


def run_command(arguments: argparse.Namespace) -> int:
    request = options.make_request(UpstreamRequest, arguments)
    if request.onto is not None:
        return write_backport(request, request.onto)
    findings = finding_files.load_findings()
    if request.names:
        findings = [finding_files.find_finding(name) for name in dict.fromkeys(request.names)]
        for finding in findings:
            if not finding.fix.toggle:
                raise UnfixError(f"{finding.name} has no fix: {finding.fix.none}")
    words = [request.release] if request.release else []
    [target] = guard_runs.prepare_targets(words, request.device, only_ready=True)
    results: dict[str, Verification] = {}
    refused: dict[str, str] = {}
    for name, group in group_by_release(findings, target, request.device).items():
        if name != target.name:
            [target] = guard_runs.prepare_targets([name], request.device, only_ready=True)
        items, problems = make_patches(group, target, request.checkout)
        refused |= problems
        results |= verify_items(items, target, request)
    if request.names and refused:
        raise UnfixError("; ".join(refused.values()))
    if request.all:
        index = request.folder / "index.md"
        index.parent.mkdir(parents=True, exist_ok=True)
        index.write_text(pull_request.make_index(findings, results, refused), encoding="utf-8")
        print(index)
    if request.json:
        options.print_json({name: result.state.value for name, result in results.items()})
    are_verified = all(each.state is VerifiedState.VERIFIED for each in results.values())
    return 0 if results and are_verified and not refused else 1


def group_by_release(
    findings: list[Finding], target: ReleaseTarget, device: str
) -> dict[str, list[Finding]]:
    """Group findings by the release to verify them on: the newest here, if one is mended there."""
    groups: dict[str, list[Finding]] = {target.name: []}
    ready = [each.name for each in managed_releases.list_releases(device) if each.is_ready]
    for finding in findings:
        known = [name for name in ready if finding.specifier.contains(name)]
        is_there = finding.specifier.contains(target.sources.version or target.name) or not known
        groups.setdefault(target.name if is_there else known[-1], []).append(finding)
    return groups


def verify_items(
    items: list[PatchedFinding], target: ReleaseTarget, request: UpstreamRequest
) -> dict[str, Verification]:
    """Verify findings on one release, and write the folders of those that are not refuted."""
    lanes = guard_runs.choose_job_count(request.device)
    if request.record and request.device == "cuda":
        file = verification.record_tests(items, target, lanes, options.report_status)
        items = [item for item in items if item.needs_gpu]
        options.report_status(f"recorded in {file}")
    elif request.record:
        record_accuracy(items, target)
    results = verification.verify_findings(items, target, lanes, options.report_status)
    for item in items:
        result = results[item.finding.name]
        folder = request.folder / item.finding.name
        if result.state is not VerifiedState.FAILED:
            pull_request.write_folder(folder, item, result, target.name)
        if request.names:
            print(f"{result.state.value}: {result.problem or folder}")
    return results


def record_accuracy(items: list[PatchedFinding], target: ReleaseTarget) -> None:
    """Run the zoo's rows of each finding as released and with its fix, and keep what they did."""

    def measure_rows(rows: list[str], enabled: list[str]) -> list[ArchitectureResult]:
        request = ZooRequest(rows, target.name, CARD, None, 300.0, [], enabled, [], [])
        run = zoo.execute_zoo(target, request)
        if run.status is not RunStatus.FINISHED:
            raise UnfixError(f"the rows {', '.join(rows)} did not all run: nothing is recorded")
        return run.results

    for name, record in accuracy.measure_findings(items, target.name, CARD, measure_rows):
        file = accuracy.add_records({name: record})
        options.report_status(f"{name}: recorded in {file}")


def make_patches(
    findings: list[Finding], target: ReleaseTarget, checkout: Path | None
) -> tuple[list[PatchedFinding], dict[str, str]]:
    """Make the patches of the findings with a fix; and why others of them have none there."""
    proposed = toggle_catalogue.load_catalogue().proposed
    items: list[PatchedFinding] = []
    refused: dict[str, str] = {}
    for finding in findings:
        if not finding.fix.toggle:
            continue
        try:
            patch = fix_patch.make_fix_patch(proposed[finding.fix.toggle], target.sources)
            fix_patch.check_patch(patch, target.sources, checkout)
        except UnfixError as error:
            refused[finding.name] = str(error)
        else:
            items.append(PatchedFinding(finding, patch))
    return items, refused


def write_backport(request: UpstreamRequest, release: str) -> int:
    """Write the patch of a fix for a release that lacks it; 1 if no proof there is recorded."""
    catalogue = toggle_catalogue.load_catalogue()
    try:
        [toggle] = catalogue.select(request.names[0])
    except (UnknownToggleError, ValueError) as error:
        raise UnfixError(f"--onto takes one toggle of `unfix list`: {error}") from error
    tree: SourceTree = provisioning.ensure_tree(release, options.report_status)
    patch = fix_patch.make_fix_patch(toggle, tree)
    fix_patch.check_patch(patch, tree, request.checkout)
    places = guard_needs.find_guard_places([toggle], catalogue)
    guards = sorted(guard_needs.find_guard_files([], [toggle], places))
    known = [each.name for each in managed_releases.list_releases()]
    proofs = [
        there.describe(known)
        for proof in recorded_proofs.load_proofs(known).get(toggle.id, [])
        if (there := proof.restrict({tree.name}))
    ]
    folder = request.folder / f"{toggle.id}-onto-{tree.name}"
    pull_request.write_backport(folder, Backport(toggle, tree.name, patch, guards, proofs))
    print(folder)
    return 0 if guards and proofs else 1
