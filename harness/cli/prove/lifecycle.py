"""`unfix lifecycle`: every guard on every release with nothing toggled: when each bug lived."""

from __future__ import annotations

import argparse

from harness.cli.command_parser import CommandParser
from harness.cli.prove import execution


def add_arguments(parser: CommandParser) -> None:
    execution.add_arguments(parser)


def run_command(arguments: argparse.Namespace) -> int:
    if arguments.resume is None and arguments.failed is None:
        arguments.release = arguments.release or ["all"]
    return execution.run_proof(arguments, "lifecycle")
