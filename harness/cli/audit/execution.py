"""Which releases are read, what of their findings is shown, and what the command ends with."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.cli import options, run_output
from harness.cli.run_kinds import import_report
from harness.core.errors import UnfixError
from harness.fixes.registry import toggle_catalogue
from harness.kernels.triton import recorded_launches
from harness.releases import managed_releases, provisioning, source_trees
from harness.releases.managed_releases import CPU_BASE
from harness.releases.source_trees import FolderSourceTree, SourceTree, WheelSourceTree
from harness.runs.audit import exemptions, gpu_confirmation
from harness.runs.audit.findings import FindingKey
from harness.runs.audit.release_audit import DEFAULT_LAUNCHES, ReleaseAudit, audit_release
from harness.runs.audit.size_limits import DEFAULT_LIMITS


def run_audit(arguments: argparse.Namespace) -> int:
    if bool(arguments.release) + bool(arguments.place) + bool(arguments.diff) > 1:
        raise UnfixError("--release, --from and --diff are three ways to say what is read: say one")
    if arguments.jobs < 1:
        raise UnfixError(f"-j {arguments.jobs} are no processes: say 1 or more")
    if arguments.again and (arguments.device == "cpu" or arguments.targets or arguments.diff):
        raise UnfixError("--again RECORD says what is run: with --device cuda, and no TARGET")
    if arguments.known and not arguments.again:
        raise UnfixError("--known RECORD is what is known of another record: say --again as well")
    seconds = options.parse_budget(arguments.budget, "--for")
    if (
        not arguments.again and not CPU_BASE.is_current()
    ):  # torch and Triton, which the releases share
        provisioning.ensure_installed(
            [managed_releases.get_newest_release()], options.report_status
        )
    limits = arguments.limits or DEFAULT_LIMITS
    if not limits.is_file():
        raise UnfixError(f"there is no file of limits {limits}")
    launches = arguments.launches or DEFAULT_LAUNCHES
    recorded_launches.read_launch_modes(launches)  # what is wrong with it is said here
    found = (
        gpu_confirmation.read_record(arguments.again)
        if arguments.again
        else _audit_requested_trees(arguments, limits, launches)
    )
    if arguments.device == "cuda":
        tree = _open_tree(arguments.diff.partition("..")[2] or found.release, arguments.place)
        known = gpu_confirmation.read_record(arguments.known) if arguments.known else None
        found = gpu_confirmation.confirm_on_gpu(
            found, _get_tree_path(tree), arguments.jobs, seconds, options.report_status, known
        )
    exempt = exemptions.read_exemptions(arguments.exceptions or exemptions.find_default_path())
    lines = {one.key for one in found.findings}
    there = {one.kernel for one in found.kernels}
    whole = not arguments.targets and not arguments.diff
    expired = [one for one in exempt if one.kernel in there and one.key not in lines and whole]
    found = found.apply_exemptions(exempt)
    if arguments.targets and not found.targeted_count:
        raise UnfixError(
            f"no kernel is meant by {' '.join(arguments.targets)}: `unfix audit --all` lists all"
        )
    if arguments.upstream is not None:
        return _print_upstream_report(found, arguments.upstream)
    from reports.audit import markdown, page, sarif, terminal

    data = _audit_to_json(found)
    run_output.write_outputs(
        arguments,
        run_output.get_default_page("audit"),
        lambda: page.render_page(found),
        lambda: markdown.render_markdown(found),
        data,
    )
    if arguments.sarif:
        run_output.save_text(arguments.sarif, sarif.render_sarif(found))
    if arguments.json:
        options.print_json(data)
    else:
        terminal.print_run(found, options.make_console(), arguments.all)
    for one in expired:
        options.report_status(
            f"an exception has expired: {one.kernel} has no such finding any more: {one.line}"
        )
    return 1 if found.findings else 0


def _audit_requested_trees(
    arguments: argparse.Namespace, limits: Path, launches: Path
) -> ReleaseAudit:
    targets = _expand_targets(arguments.targets)

    def read(tree: SourceTree, name: str, before: Path | None = None) -> ReleaseAudit:
        how = limits, targets, arguments.jobs, options.report_status, before, launches
        return audit_release(_get_tree_path(tree), name, *how)

    def one(tree: SourceTree) -> ReleaseAudit:
        return read(tree, tree.name)

    def since(old: SourceTree, new: SourceTree) -> ReleaseAudit:
        return read(new, f"{old.name}..{new.name}", _get_tree_path(old))

    if arguments.diff:
        before, _, after = arguments.diff.partition("..")
        if not before or not after:
            raise UnfixError(f"--diff {arguments.diff} is no A..B: say --diff 0.5.18..0.5.23")
        return since(_open_tree(before), _open_tree(after))
    if arguments.release == "all":
        return _date_findings(
            [
                one(tree)
                for tree in provisioning.ensure_sources(
                    managed_releases.list_releases(), options.report_status
                )
            ]
        )
    if arguments.place:
        return one(_open_tree("", arguments.place))
    return one(_open_tree(arguments.release or managed_releases.get_newest_release().name))


def _expand_targets(words: list[str]) -> list[str]:
    """As they are, and with the modules that the toggles of a family change."""
    known = toggle_catalogue.load_catalogue()
    toggles = known.select_all(word for word in words if known.has_match(word))
    places = (place for one in toggles for each in one.variants for place in each.targets)
    return list(dict.fromkeys([*words, *(place.module for place in places)]))


def _open_tree(word: str, path: Path | None = None) -> SourceTree:
    if path:
        return source_trees.open_tree(path)
    if "/" in word or word.endswith(".whl") or Path(word).is_dir():
        return source_trees.open_tree(Path(word))
    return provisioning.ensure_sources([managed_releases.get_release(word)], options.report_status)[
        0
    ]


def _get_tree_path(tree: SourceTree) -> Path:
    assert isinstance(tree, (FolderSourceTree, WheelSourceTree))
    return tree.folder if isinstance(tree, FolderSourceTree) else tree.wheel


def _date_findings(audits: list[ReleaseAudit]) -> ReleaseAudit:
    """The newest, each finding with the first release from which on all have it."""
    newest = audits[-1]
    has = [{finding.key for finding in one.findings} for one in audits]

    def since(key: FindingKey) -> str:
        first = len(audits) - 1
        while first and key in has[first - 1]:
            first -= 1
        return audits[first].release

    kernels = tuple(
        replace(
            kernel,
            findings=tuple(replace(one, since=since(one.key)) for one in kernel.findings),
        )
        for kernel in newest.kernels
    )
    return replace(newest, kernels=kernels)


def _audit_to_json(result: ReleaseAudit) -> dict[str, Any]:
    return {
        "release": result.release,
        "limits": result.limits,
        "seconds": result.seconds,
        "gpu": result.gpu,
        "counts": result.count_verdicts(),
        "findings": [
            asdict(one) | {"condition": one.condition, "nearness": one.nearness}
            for one in result.findings
        ],
        "kernels": [asdict(one) for one in result.kernels],
    }


def _print_upstream_report(result: ReleaseAudit, number: int) -> int:
    if not 1 <= number <= len(result.findings):
        raise UnfixError(f"there is no finding {number}: there are {len(result.findings)}")
    from reports.audit import upstream

    print(upstream.render_upstream_report(result.findings[number - 1], result.release))
    return 0
