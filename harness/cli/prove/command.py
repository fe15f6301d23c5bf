"""`unfix prove`: every guard with its fix in and with it out."""

from __future__ import annotations

import argparse

from harness.cli.parsing import Parser
from harness.cli.prove import running


def add_arguments(parser: Parser) -> None:
    running.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return running.run(arguments, "prove")
