"""`unfix lifecycle`: every guard on every release with nothing toggled: when each bug lived."""

from __future__ import annotations

import argparse

from harness.cli.parsing import Parser
from harness.cli.prove import running


def add_arguments(parser: Parser) -> None:
    running.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.resume is None and arguments.failed is None:
        arguments.release = arguments.release or ["all"]
    return running.run(arguments, "lifecycle")
