"""`unfix test`: this project's own tests, with the releases they need made first."""

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

# With an environment: the oldest, the one that serves in the tests, and the newest.
INSTALLED_RELEASES = ("0.5.9", "0.5.18", "0.5.23")
EVERY_RELEASE_OPTION = "--every-release"
PLURAL_OUTCOMES = {"error": "errors"}
SINGULAR_OUTCOMES = {"warnings": "warning"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"unfix test [{EVERY_RELEASE_OPTION}] [PYTEST ARGUMENTS …]"
    parser.epilog = (
        f"{EVERY_RELEASE_OPTION}: over the environments of all eleven releases, not of {', '.join(INSTALLED_RELEASES)} "
        "alone. A path or node among the arguments runs in unfix's own environment alone."
    )


def run_command(arguments: argparse.Namespace) -> int:
    root = paths.project_folder()
    if not (root / "tests").is_dir():
        raise UnfixError("the tests are in a checkout of the project, not in the wheel")
    chosen = managed_releases.list_releases()
    if EVERY_RELEASE_OPTION not in arguments.words:
        chosen = [managed_releases.get_release(name) for name in INSTALLED_RELEASES]
    words = [word for word in arguments.words if word != EVERY_RELEASE_OPTION]
    for word in words:
        path = word.partition("::")[0]
        if path.startswith("tests") and not (root / path).exists():
            raise CommandLineError(f"there is no {path} under {root}", arguments.usage)
    provisioning.ensure_sources(managed_releases.list_releases(), options.report_status)
    provisioning.ensure_installed(chosen, options.report_status)
    if any((root / word.partition("::")[0]).exists() for word in words):
        here = PytestPart("", sys.executable, ())
        done = subprocess.run(
            execution.build_pytest_command(here, words),
            cwd=root,
            env=execution.make_environment(here, root),
        )
        return 1 if done.returncode else 0
    return run_all_parts(chosen, words, root)


def run_all_parts(releases: list[managed_releases.Release], words: list[str], root: Path) -> int:
    began = time.monotonic()
    together, alone = (
        partition.list_concurrent_parts(root / "tests", releases),
        partition.make_serial_part(root / "tests"),
    )
    number = {part: at for at, part in enumerate([*together, alone], 1)}

    def begins(part: PytestPart) -> None:
        options.report_status(f"part {number[part]} of {len(number)}: {part.name}")

    ended = []
    with end_processes_on_exit(include_orphans=False):
        # Tests wait as well: for a limit to be over, for what was started to end.
        many = len(os.sched_getaffinity(0)) + 2
        for group, width in ((together, many), ([alone], 1)):
            for one in execution.run_parts(group, words, root, width, begins):
                if one.usage_error:
                    raise UnfixError(f"pytest does not take these words: {one.usage_error}")
                ended.append(one)
                print_result(
                    one, one.is_green(bool(words)), f"part {number[one.part]} of {len(number)}"
                )
    print_skipped(ended)
    red = [one for one in ended if not one.is_green(bool(words))]
    for one in red:
        again = shlex.join(execution.build_pytest_command(one.part, words))
        print(f"RED {one.part.name} (exit code {one.exit_code}), again: {again}")
    counts = sum((one.counts for one in ended), Counter[str]())
    print(f"=== {format_counts(counts, time.monotonic() - began)} ===")
    return 1 if red or not any(one.test_count for one in ended) else 0


def print_result(result: PytestPartResult, is_green: bool, position: str) -> None:
    """A line of what is green; all that was said by what is not."""
    if not is_green:
        print(f"{result.output.rstrip()}\n", flush=True)
    options.report_status(
        f"{position}: {result.part.name}: {format_counts(result.counts, result.seconds)}"
    )


def print_skipped(results: Iterable[PytestPartResult]) -> None:
    """What this machine cannot run, and what each test said that was not run: by name."""
    for_want_of = defaultdict(list)
    for one in results:
        for node, reason in one.skipped:
            for_want_of[reason.removeprefix("Skipped: ")].append(f"{node} ({one.part.name})")
    for reason, nodes in for_want_of.items():
        print(f"{len(nodes)} not run: {reason}")
        for node in nodes:
            print(f"  {node}")


def format_counts(counts: Counter[str], seconds: float) -> str:
    """As pytest's own last line says it."""
    said = ", ".join(
        f"{count} {(SINGULAR_OUTCOMES if count == 1 else PLURAL_OUTCOMES).get(outcome, outcome)}"
        for outcome in OUTCOMES
        if (count := counts[outcome])
    )
    minutes, rest = divmod(int(seconds), 60)
    clock = f" ({minutes // 60}:{minutes % 60:02}:{rest:02})" if minutes else ""
    return f"{said or 'no tests ran'} in {seconds:.2f}s{clock}"
