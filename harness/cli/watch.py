"""`unfix watch`: what a newer version of SGLang did to the findings and their proposed fixes."""

from __future__ import annotations

import argparse

from harness.cli import options
from harness.findings import finding_files, watched_findings
from harness.findings.schema import Finding
from harness.findings.watched_findings import WatchedFinding
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases, provisioning
from harness.releases.source_trees import SourceTree

MAX_DIFF_LINES = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="FINDING", help="findings (default: all)")
    parser.add_argument(
        "--to",
        metavar="V",
        help="a version, or the path of a wheel or a checkout (default: the newest release here)",
    )
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    findings = finding_files.load_findings()
    if arguments.names:
        findings = [finding_files.find_finding(name) for name in arguments.names]
    proposed = toggle_catalogue.load_catalogue().proposed
    tree = provisioning.ensure_tree(arguments.to, options.report_status)
    releases = [each for each in managed_releases.list_releases() if each.has_sources]
    trees = {release.name: release.open_sources() for release in releases}

    def find_base(finding: Finding) -> SourceTree | None:
        named = [name for name in trees if finding.specifier.contains(name)]
        others = [name for name in named if name != tree.name] or named
        return trees[others[-1]] if others else None

    watched = [
        watched_findings.watch_finding(each, proposed.get(each.fix.toggle), tree, find_base)
        for each in findings
    ]
    if arguments.json:
        options.print_json([make_row(each) for each in watched])
    else:
        print_findings(watched, str(tree.version or tree.name))
    return 1 if any(each.advice for each in watched) else 0


def make_row(each: WatchedFinding) -> dict[str, str]:
    row = {"finding": each.finding.name, "state": each.state.value, "why": each.why}
    return {**row, "advice": each.advice, "diff": each.diff}


def print_findings(watched: list[WatchedFinding], version: str) -> None:
    out = options.make_console()
    for each in watched:
        out.print(f"{each.state.value:12} {each.finding.name}: {each.why}", soft_wrap=True)
        if not each.advice:
            continue
        out.print(f"             [bold]{each.advice}[/]", soft_wrap=True)
        lines = each.diff.splitlines()
        more = [f"… {len(lines) - MAX_DIFF_LINES} more lines"] * (len(lines) > MAX_DIFF_LINES)
        options.print_diff(out, "\n".join(lines[:MAX_DIFF_LINES] + more))
    count = sum(bool(each.advice) for each in watched)
    out.print(f"{len(watched)} findings on SGLang {version}: {count} to rewrite")
