"""`unfix prove`: every guard with its fix in and with it out."""

from __future__ import annotations

import argparse

from harness.cli.command_parser import CommandParser
from harness.cli.prove import execution


def add_arguments(parser: CommandParser) -> None:
    execution.add_arguments(parser)


def run_command(arguments: argparse.Namespace) -> int:
    return execution.run_proof(arguments, "prove")
