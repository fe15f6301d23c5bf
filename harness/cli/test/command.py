"""`unfix test`: installs the releases that this project's own tests need, and runs the tests."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from harness.cli import options
from harness.cli.process_cleanup import end_processes_on_exit
from harness.cli.test import execution, partition
from harness.cli.test.execution import PytestPartResult
from harness.cli.test.outcome_counts import OUTCOMES
from harness.cli.test.partition import PytestPart
from harness.core import paths
from harness.core.errors import CommandLineError, UnfixError
from harness.releases import managed_releases, provisioning

# The oldest release, the tests' server release, and the newest.
INSTALLED_RELEASES = ("0.5.9", "0.5.18", "0.5.23")
EVERY_RELEASE_OPTION = "--every-release"
PLURAL_OUTCOMES = {"error": "errors"}
SINGULAR_OUTCOMES = {"warnings": "warning"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"unfix test [{EVERY_RELEASE_OPTION}] [PYTEST ARGUMENTS …]"
    parser.epilog = (
        f"{EVERY_RELEASE_OPTION}: the environments of all releases, not only those of "
        f"{', '.join(INSTALLED_RELEASES)}. A path or node runs in unfix's own environment alone."
    )


def run_command(arguments: argparse.Namespace) -> int:
    root = paths.project_folder()
    if not (root / "tests").is_dir():
        raise UnfixError("the tests are in a checkout of the project, not in the wheel")
    words = [word for word in arguments.words if word != EVERY_RELEASE_OPTION]
    for word in words:
        path = word.partition("::")[0]
        if path.startswith("tests") and not (root / path).exists():
            raise CommandLineError(f"there is no {path} under {root}", arguments.usage)
    releases = managed_releases.list_releases()
    provisioning.ensure_sources(releases, options.report_status)
    if EVERY_RELEASE_OPTION not in arguments.words:
        releases = [managed_releases.get_release(name) for name in INSTALLED_RELEASES]
    provisioning.ensure_installed(releases, options.report_status)
    if any((root / word.partition("::")[0]).exists() for word in words):
        command = execution.build_pytest_command(PytestPart("", sys.executable, ()), words)
        environment = execution.make_environment(root)
        return 1 if subprocess.run(command, cwd=root, env=environment).returncode else 0
    return run_all_parts(releases, words, root)


def run_all_parts(releases: list[managed_releases.Release], words: list[str], root: Path) -> int:
    started = time.monotonic()
    parts = partition.list_parts(root / "tests", releases)
    numbers = {part: place for place, part in enumerate(parts, 1)}

    def report_start(part: PytestPart) -> None:
        options.report_status(f"part {numbers[part]} of {len(numbers)}: {part.name}")

    results: list[PytestPartResult] = []
    with end_processes_on_exit(include_orphans=False):
        # Two more than the cores, since some tests only wait: for a time limit, for a process.
        width = len(os.sched_getaffinity(0)) + 2
        for result in execution.run_parts(parts, words, root, width, report_start):
            if result.usage_error:
                raise UnfixError(f"pytest refuses these arguments: {result.usage_error}")
            results.append(result)
            if not result.is_green(bool(words)):
                print(f"{result.output.rstrip()}\n", flush=True)
            summary = format_counts(result.counts, result.seconds)
            position = f"part {numbers[result.part]} of {len(numbers)}"
            options.report_status(f"{position}: {result.part.name}: {summary}")
    print_skipped(results)
    red = [result for result in results if not result.is_green(bool(words))]
    for result in red:
        command = shlex.join(execution.build_pytest_command(result.part, words))
        print(f"RED {result.part.name} (exit code {result.exit_code}), again: {command}")
    counts = sum((result.counts for result in results), Counter[str]())
    print(f"=== {format_counts(counts, time.monotonic() - started)} ===")
    return 1 if red or not any(result.test_count for result in results) else 0


def print_skipped(results: Iterable[PytestPartResult]) -> None:
    """Print each reason for skipping, with its tests."""
    nodes_by_reason = defaultdict(list)
    for result in results:
        for node, reason in result.skipped:
            nodes_by_reason[reason.removeprefix("Skipped: ")].append(f"{node} ({result.part.name})")
    for reason, nodes in nodes_by_reason.items():
        print(f"{len(nodes)} not run: {reason}")
        for node in nodes:
            print(f"  {node}")


def format_counts(counts: Counter[str], seconds: float) -> str:
    """Format the counts in the words of pytest's own last line."""
    words = ", ".join(
        f"{count} {(SINGULAR_OUTCOMES if count == 1 else PLURAL_OUTCOMES).get(outcome, outcome)}"
        for outcome in OUTCOMES
        if (count := counts[outcome])
    )
    minutes, rest = divmod(int(seconds), 60)
    clock = f" ({minutes // 60}:{minutes % 60:02}:{rest:02})" if minutes else ""
    return f"{words or 'no tests ran'} in {seconds:.2f}s{clock}"
