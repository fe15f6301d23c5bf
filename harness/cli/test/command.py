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

from harness import paths
from harness.cli import options
from harness.cli.owning import owning
from harness.cli.test import parts, running
from harness.cli.test.counting import OUTCOMES
from harness.cli.test.parts import Part
from harness.cli.test.running import Ended
from harness.errors import UnfixError, WrongCall
from harness.releases import having, managed

# With an environment: the oldest, the one that serves in the tests, and the newest.
INSTALLED = ("0.5.9", "0.5.18", "0.5.23")
EVERY = "--every-release"
PLURAL = {"error": "errors"}
SINGULAR = {"warnings": "warning"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"unfix test [{EVERY}] [PYTEST ARGUMENTS …]"
    parser.epilog = (
        f"{EVERY}: over the environments of all eleven releases, not of {', '.join(INSTALLED)} "
        "alone. A path or node among the arguments runs in unfix's own environment alone."
    )


def run(arguments: argparse.Namespace) -> int:
    root = paths.project()
    if not (root / "tests").is_dir():
        raise UnfixError("the tests are in a checkout of the project, not in the wheel")
    chosen = managed.all_releases()
    if EVERY not in arguments.words:
        chosen = [managed.get(name) for name in INSTALLED]
    words = [word for word in arguments.words if word != EVERY]
    for word in words:
        path = word.partition("::")[0]
        if path.startswith("tests") and not (root / path).exists():
            raise WrongCall(f"there is no {path} under {root}", arguments.usage)
    having.read(managed.all_releases(), options.say)
    having.ready(chosen, options.say)
    if any((root / word.partition("::")[0]).exists() for word in words):
        here = Part("", sys.executable, ())
        done = subprocess.run(
            running.command(here, words), cwd=root, env=running.environment(here, root)
        )
        return 1 if done.returncode else 0
    return all_parts(chosen, words, root)


def all_parts(releases: list[managed.Release], words: list[str], root: Path) -> int:
    began = time.monotonic()
    together, alone = parts.side_by_side(root / "tests", releases), parts.alone(root / "tests")
    number = {part: at for at, part in enumerate([*together, alone], 1)}

    def begins(part: Part) -> None:
        options.say(f"part {number[part]} of {len(number)}: {part.name}")

    ended = []
    with owning(orphans=False):
        # Tests wait as well: for a limit to be over, for what was started to end.
        many = len(os.sched_getaffinity(0)) + 2
        for group, width in ((together, many), ([alone], 1)):
            for one in running.run(group, words, root, width, begins):
                if one.refused:
                    raise UnfixError(f"pytest does not take these words: {one.refused}")
                ended.append(one)
                show(one, one.is_green(bool(words)), f"part {number[one.part]} of {len(number)}")
    print_missing(ended)
    red = [one for one in ended if not one.is_green(bool(words))]
    for one in red:
        again = shlex.join(running.command(one.part, words))
        print(f"RED {one.part.name} (exit code {one.code}), again: {again}")
    counts = sum((one.counts for one in ended), Counter[str]())
    print(f"=== {sentence(counts, time.monotonic() - began)} ===")
    return 1 if red or not any(one.tests for one in ended) else 0


def show(ended: Ended, is_green: bool, which: str) -> None:
    """A line of what is green; all that was said by what is not."""
    if not is_green:
        print(f"{ended.output.rstrip()}\n", flush=True)
    options.say(f"{which}: {ended.part.name}: {sentence(ended.counts, ended.seconds)}")


def print_missing(ended: Iterable[Ended]) -> None:
    """What this machine cannot run, and what each test said that was not run: by name."""
    for_want_of = defaultdict(list)
    for one in ended:
        for node, reason in one.skipped:
            for_want_of[reason.removeprefix("Skipped: ")].append(f"{node} ({one.part.name})")
    for reason, nodes in for_want_of.items():
        print(f"{len(nodes)} not run: {reason}")
        for node in nodes:
            print(f"  {node}")


def sentence(counts: Counter[str], seconds: float) -> str:
    """As pytest's own last line says it."""
    said = ", ".join(
        f"{count} {(SINGULAR if count == 1 else PLURAL).get(outcome, outcome)}"
        for outcome in OUTCOMES
        if (count := counts[outcome])
    )
    minutes, rest = divmod(int(seconds), 60)
    clock = f" ({minutes // 60}:{minutes % 60:02}:{rest:02})" if minutes else ""
    return f"{said or 'no tests ran'} in {seconds:.2f}s{clock}"
