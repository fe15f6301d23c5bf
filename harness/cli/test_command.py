"""`unfix test`: this project's own tests, with the releases they need made first."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness import paths
from harness.cli import options
from harness.errors import UnfixError
from harness.releases import install, managed

# With an environment: the oldest, the one that serves in the tests, and the newest.
INSTALLED = ("0.5.9", "0.5.18", "0.5.23")
EVERY = "--every-release"
# A file stays in one process, since its tests share what they set up; no file waits for the end
# because it has few tests.
BY_FILE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# What must hold of every release; the guards, which need a fix in or out, are `unfix prove`'s.
PROPERTIES = ("suites", "-m", "not guards", "--profile", "smoke", "-n", "2")


@dataclass(frozen=True)
class Session:
    """One pytest run: which tests, and under which Python."""

    python: str
    words: tuple[str, ...]


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
            raise UnfixError(f"there is no {path} under {root}")
    for release in managed.all_releases():
        install.add_sources(release, options.say)
    for release in chosen:
        install.add(release, options.say)
    places = [word for word in words if (root / word.partition("::")[0]).exists()]
    planned = [Session(sys.executable, ())] if places else sessions(chosen)
    codes = [session_code(session, words, root) for session in planned]
    return next((1 for code in codes if code), 0)


def sessions(releases: list[managed.Release]) -> list[Session]:
    apart = ("kernels", "releases", "searches")
    elsewhere = tuple(f"--ignore=tests/{name}" for name in apart)
    base = str(install.base_python())
    return [
        Session(sys.executable, ("tests", *elsewhere, "-m", "not alone", *BY_FILE)),
        Session(sys.executable, ("tests", *elsewhere, "-m", "alone")),
        Session(sys.executable, ("tests/searches", "-n", "2")),
        Session(base, ("tests/kernels/checked",)),
        Session(base, ("tests/kernels/compiled",)),
        Session(base, ("tests/kernels/gpu",)),
        *(Session(str(release.python), ("tests/releases",)) for release in releases),
        *(Session(str(release.python), PROPERTIES) for release in releases),
    ]


def session_code(session: Session, words: list[str], root: Path) -> int:
    command = [session.python, "-m", "pytest", *session.words, *words]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    options.say(f"{' '.join(session.words or words)} under {session.python}")
    return subprocess.run(command, cwd=root, env=environment).returncode
