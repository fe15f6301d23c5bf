"""`unfix lifecycle`: every guard on every release with nothing toggled: when each bug lived."""

from __future__ import annotations

import argparse

from harness.cli import running


def add_arguments(parser: argparse.ArgumentParser) -> None:
    running.add_arguments(parser)
    parser.set_defaults(release=[])


def run(arguments: argparse.Namespace) -> int:
    arguments.release = arguments.release or ["all"]
    return running.run(arguments, "lifecycle")
