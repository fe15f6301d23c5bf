"""The execution of `unfix audit`: its releases, the output of findings, and the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.cli import guard_runs, kernel_words, options, run_output
from harness.cli.audit import ranking
from harness.core import machine
from harness.core.errors import UnfixError
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases, provisioning, source_trees
from harness.releases.managed_releases import CPU_BASE
from harness.releases.source_trees import FolderSourceTree, SourceTree, WheelSourceTree
from harness.runs.audit import audit_record, exemptions, gpu_confirmation, release_files
from harness.runs.audit.exemptions import FindingExemption
from harness.runs.audit.findings import FindingKey
from harness.runs.audit.release_audit import (
    DEFAULT_LAUNCHES,
    NO_LAUNCHES,
    AuditRequest,
    ReleaseAudit,
    audit_release,
    find_any_python,
)
from harness.runs.audit.size_limits import DEFAULT_LIMITS, GENERAL_LIMITS
from harness.sanitizer.triton import recorded_launches
from harness.sanitizer.triton.recorded_reach import RECORD_VARIABLE


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The valid options of the command line."""

    targets: tuple[str, ...]
    release: str
    folder: Path | None
    difference: tuple[str, str] | None  # the earlier and the later release
    limits: Path
    launches: Path
    exemptions: Path
    on_gpu: bool
    record: Path | None  # a record with findings to run again
    gpu_seconds: float
    jobs: int
    upstream: int | None
    ranks: bool  # by what deployments reach
    show_all: bool
    sarif: Path | None
    as_json: bool

    @property
    def is_whole(self) -> bool:
        return not self.targets and not self.difference


def parse_options(arguments: argparse.Namespace) -> AuditOptions:
    if arguments.release and (arguments.place or arguments.diff):
        raise UnfixError("--release excludes --from and --diff: give one of them")
    if arguments.jobs < 1:
        raise UnfixError(f"-j {arguments.jobs} is no number of processes: give 1 or more")
    if arguments.again and (arguments.targets or arguments.diff):
        raise UnfixError(
            "--again RECORD runs the findings of that record: leave out TARGET and --diff"
        )
    earlier, separator, later = arguments.diff.partition("..")
    if arguments.diff and not (earlier and (later or arguments.place)):
        raise UnfixError(
            f"--diff {arguments.diff} is not A..B: say --diff 0.5.18..0.5.23; with --from "
            "CHECKOUT these are its commits, and A.. is what its files change"
        )
    if arguments.diff and arguments.place:  # commits of a checkout, the later may be its files
        place = arguments.place.expanduser().resolve()
        earlier, later = f"{place}@{earlier}", f"{place}@{later}" if later else str(place)
    limits = arguments.limits or DEFAULT_LIMITS
    if not limits.is_file():
        raise UnfixError(f"there is no file of limits {limits}")
    launches = arguments.launches or DEFAULT_LAUNCHES
    recorded_launches.read_launch_modes(launches)  # raises an error if the file is malformed
    return AuditOptions(
        targets=tuple(arguments.targets),
        release=arguments.release or "",
        folder=arguments.place,
        difference=(earlier, later) if separator else None,
        limits=limits,
        launches=launches,
        exemptions=arguments.exceptions or exemptions.find_default_path(),
        on_gpu=arguments.device == "cuda",
        record=arguments.again,
        gpu_seconds=options.parse_budget(arguments.budget, "--for"),
        jobs=arguments.jobs,
        upstream=arguments.upstream,
        ranks=arguments.rehearsal,
        show_all=arguments.all,
        sarif=arguments.sarif,
        as_json=arguments.json,
    )


def run_audit(arguments: argparse.Namespace) -> int:
    chosen = parse_options(arguments)
    _report_meanings(chosen.targets)
    audit = _audit_requested_trees(chosen)
    exempt = exemptions.read_exemptions(chosen.exemptions)
    reads_all = chosen.is_whole and chosen.record is None  # a record is without exempt findings
    expired = audit.find_expired(exempt) if reads_all else []
    audit = audit.apply_exemptions(exempt)
    if chosen.ranks and release_files.PACKAGE in _find_read_packages(chosen):
        audit = _rank_findings(audit, chosen, exempt)
    if not audit.kernels and not chosen.difference and not chosen.targets:
        raise UnfixError(
            f"{audit.release} has no Triton kernel: no function of "
            f"{', '.join(_find_read_packages(chosen))} is decorated with @triton.jit"
        )
    if chosen.targets and not audit.targeted_count:
        raise UnfixError(
            f"no kernel matches {' '.join(chosen.targets)}: `unfix audit --all` lists all"
        )
    if chosen.upstream is not None:
        return _print_upstream_report(audit, chosen.upstream)
    from reports.audit import markdown, page, sarif, terminal

    data = audit_record.audit_to_json(audit)
    run_output.write_outputs(
        arguments,
        run_output.get_default_page(f"audit-{guard_runs.make_id_and_start()[0]}"),
        lambda: page.render_page(audit, machine.describe_commit()),
        lambda: markdown.render_markdown(audit),
        data,
        is_red=audit.is_red,
    )
    if chosen.sarif:
        run_output.save_text(chosen.sarif, sarif.render_sarif(audit))
    if chosen.as_json:
        options.print_json(data)
    else:
        lists = chosen.show_all or bool(chosen.targets)
        terminal.print_run(audit, options.make_console(), chosen.show_all, lists_possible=lists)
    for each in expired:
        options.report_status(
            f"an exception has expired: {each.kernel} has no such finding any more: {each.line}"
        )
    return 1 if audit.is_red else 0


def _rank_findings(
    audit: ReleaseAudit, chosen: AuditOptions, exempt: Sequence[FindingExemption]
) -> ReleaseAudit:
    """Rank the findings by what deployments reach, in the release or the trees of the call."""
    if chosen.record:
        return _rank_record(audit)
    if chosen.difference:
        earlier, later = chosen.difference
        if not ranking.is_release(later):
            return ranking.rank_new_sources(audit, get_tree_path(open_tree(earlier)))
        targets = _expand_targets(chosen.targets)
        return ranking.rank_difference(
            audit, later, earlier, targets, lambda name: get_tree_path(open_tree(name))
        )
    if chosen.folder is None and ranking.is_release(audit.release):
        return ranking.rank_release(audit, rehearses=chosen.is_whole, jobs=chosen.jobs)
    place = chosen.folder.expanduser().resolve() if chosen.folder else chosen.release

    def find_new(release: str) -> set[FindingKey]:
        options.report_status(f"reading {release}, whose findings do not count")
        new = _audit_sources(replace(chosen, difference=(release, str(place))))
        return {finding.key for finding in new.apply_exemptions(exempt).findings}

    return ranking.rank_sources(audit, find_new)


def _rank_record(audit: ReleaseAudit) -> ReleaseAudit:
    """Rank a record by the name of what it audited; of other sources each finding counts."""
    if ranking.is_release(audit.release):
        return ranking.rank_release(audit, rehearses=False)
    earlier, _, later = audit.release.partition("..")
    if ranking.is_release(later):
        return ranking.rank_difference(audit, later, earlier, find_sources=_find_local_sources)
    return ranking.rank_sources(audit, lambda _: {finding.key for finding in audit.findings})


def _find_local_sources(name: str) -> Path | None:
    """Find the sources of a release on this machine; a record is ranked without a download."""
    known = {one.name: one for one in managed_releases.list_known_releases()}
    release = known.get(name)
    if release is None or not (release.is_ready or release.any_wheel):
        return None
    return get_tree_path(release.open_sources())


def _audit_requested_trees(chosen: AuditOptions) -> ReleaseAudit:
    audit = audit_record.read_record(chosen.record) if chosen.record else _audit_sources(chosen)
    if not chosen.on_gpu:
        return audit
    place = None if chosen.difference else chosen.folder
    tree = open_tree(chosen.difference[1] if chosen.difference else audit.release, place)
    return gpu_confirmation.confirm_on_gpu(
        audit, get_tree_path(tree), chosen.jobs, chosen.gpu_seconds, options.report_status
    )


def _audit_sources(chosen: AuditOptions) -> ReleaseAudit:
    targets = _expand_targets(chosen.targets)

    def audit(tree: SourceTree, earlier: SourceTree | None = None) -> ReleaseAudit:
        request = AuditRequest(
            location=get_tree_path(tree),
            release=f"{earlier.name}..{tree.name}" if earlier else tree.name,
            targets=targets,
            jobs=chosen.jobs,
            limits=chosen.limits,
            launches=chosen.launches,
            earlier_location=get_tree_path(earlier) if earlier else None,
        )
        return _audit_kernels(request, chosen.targets)

    if chosen.difference:
        earlier, later = chosen.difference
        return audit(open_tree(later), open_tree(earlier))
    if chosen.release == "all":
        releases = managed_releases.list_releases()
        trees = provisioning.ensure_sources(releases, options.report_status)
        return _date_findings([audit(tree) for tree in trees])
    if chosen.folder:
        return _audit_folder(chosen, targets, audit)
    return audit(open_tree(chosen.release or managed_releases.get_newest_release().name))


def _audit_folder(
    chosen: AuditOptions,
    targets: tuple[str, ...],
    audit_tree: Callable[[SourceTree], ReleaseAudit],
) -> ReleaseAudit:
    """Audit the package at a path: as a release if it is SGLang, else by its suite's launches."""
    assert chosen.folder is not None
    location = release_files.find_location(chosen.folder)
    if release_files.PACKAGE in release_files.find_packages(location):
        return audit_tree(open_tree("", chosen.folder))
    packages = release_files.find_packages(location)
    options.report_status(f"{chosen.folder} is read as {', '.join(packages)}, which is not SGLang")
    if chosen.launches == DEFAULT_LAUNCHES and chosen.limits == DEFAULT_LIMITS:
        raise UnfixError(
            "which sizes a kernel gets is known from launches alone: run the package's tests with "
            f"`{RECORD_VARIABLE}=launches python -m pytest --sanitize=bounds`, and audit with "
            "`--launches launches`"
        )
    request = AuditRequest(
        python=find_any_python(),
        location=location,
        release=chosen.folder.stem if location.suffix == ".whl" else ", ".join(packages),
        targets=targets,
        jobs=chosen.jobs,
        limits=GENERAL_LIMITS if chosen.limits == DEFAULT_LIMITS else chosen.limits,
        launches=NO_LAUNCHES if chosen.launches == DEFAULT_LAUNCHES else chosen.launches,
    )
    return _audit_kernels(request, chosen.targets)


def _audit_kernels(request: AuditRequest, words: Sequence[str]) -> ReleaseAudit:
    """Audit sources once all words of the call are known, and what reads kernels is installed."""
    catalogue = toggle_catalogue.load_catalogue()
    own_words = [word for word in words if not catalogue.has_match(word)]
    if request.earlier_location is None:
        kernel_words.refuse_unknown_words(
            own_words, request.release, request.location, with_cuda=False
        )
    if (
        request.python == CPU_BASE.python and not CPU_BASE.is_current()
    ):  # the releases' common torch and Triton
        newest = managed_releases.get_newest_release()
        provisioning.ensure_installed([newest], options.report_status)
    return audit_release(request, options.report_status)


def _find_read_packages(chosen: AuditOptions) -> tuple[str, ...]:
    if chosen.folder is None:
        return (release_files.PACKAGE,)
    return release_files.find_packages(release_files.find_location(chosen.folder))


def _expand_targets(words: tuple[str, ...]) -> tuple[str, ...]:
    """Add the modules that the toggles of a named id or family change."""
    catalogue = toggle_catalogue.load_catalogue()
    of_toggles = [word for word in words if catalogue.has_match(word)]
    toggles = catalogue.select_all(of_toggles)
    variants = (variant for toggle in toggles for variant in toggle.variants)
    modules = (target.module for variant in variants for target in variant.targets)
    return tuple(dict.fromkeys([*words, *modules]))


def _report_meanings(words: tuple[str, ...]) -> None:
    catalogue = toggle_catalogue.load_catalogue()
    code = "kernels, files and folders of that name"
    meanings = {word: catalogue.describe_match(word) for word in words}
    options.report_meanings(
        {
            word: f"{named}: the modules that are changed are audited, and {code}"
            for word, named in meanings.items()
            if named
        }
    )


def open_tree(word: str, path: Path | None = None) -> SourceTree:
    if path:
        return source_trees.open_tree(path)
    return provisioning.ensure_tree(word, options.report_status)


def get_tree_path(tree: SourceTree) -> Path:
    assert isinstance(tree, (FolderSourceTree, WheelSourceTree))
    return tree.folder if isinstance(tree, FolderSourceTree) else tree.wheel


def _date_findings(audits: list[ReleaseAudit]) -> ReleaseAudit:
    """Date each finding of the newest release: the first release from which on all have it."""
    keys = [{finding.key for finding in audit.findings} for audit in audits]

    def find_first_release(key: FindingKey) -> str:
        first = len(audits) - 1
        while first and key in keys[first - 1]:
            first -= 1
        return audits[first].release

    kernels = [
        replace(
            kernel,
            findings=tuple(
                replace(finding, since=find_first_release(finding.key))
                for finding in kernel.findings
            ),
        )
        for kernel in audits[-1].kernels
    ]
    return replace(audits[-1], kernels=tuple(kernels))


def _print_upstream_report(audit: ReleaseAudit, number: int) -> int:
    from reports.audit import upstream

    headline, possible = audit.headline, audit.possible
    if not 1 <= number <= len(headline) + len(possible):
        raise UnfixError(
            f"there is no finding {number}: there are {len(headline) + len(possible)}, which "
            "`unfix audit --all` numbers"
        )
    if number <= len(headline):
        print(upstream.render_deployment_report(headline[number - 1], audit.release))
    else:
        finding = possible[number - 1 - len(headline)]
        print(upstream.render_upstream_report(finding, audit.release))
    return 0
