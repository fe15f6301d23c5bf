"""`unfix test`: this project's own tests, with the releases they need made first."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from harness import paths
from harness.cli import options
from harness.errors import UnfixError
from harness.releases import install, managed

# With an environment: the oldest, the one that serves in the tests, and the newest.
INSTALLED = ("0.5.9", "0.5.18", "0.5.23")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "unfix test [PYTEST ARGUMENTS …]"


def run(arguments: argparse.Namespace) -> int:
    root = paths.project()
    if not (root / "tests").is_dir():
        raise UnfixError("the tests are in a checkout of the project, not in the wheel")
    for release in managed.all_releases():
        install.add_sources(release, options.say)
    for name in INSTALLED:
        install.add(managed.get(name), options.say)
    chosen = [word for word in arguments.words if not word.startswith("-")]
    sessions = [
        (sys.executable, {}, ["tests", "--ignore=tests/kernels"]),
        (str(install.base_python()), {"TRITON_INTERPRET": "1"}, ["tests/kernels/interpreted"]),
        (str(install.base_python()), {"TRITON_INTERPRET": "0"}, ["tests/kernels/compiled"]),
        (str(install.base_python()), {"TRITON_INTERPRET": "0"}, ["tests/kernels/gpu"]),
    ]
    codes = []
    for python, extra, places in sessions[:1] if chosen else sessions:
        words = [python, "-m", "pytest", *([] if chosen else places), *arguments.words]
        environment = {**os.environ, **extra, "PYTHONPATH": str(root)}
        codes.append(subprocess.run(words, cwd=root, env=environment).returncode)
    return next((1 for code in codes if code), 0)
