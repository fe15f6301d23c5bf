"""`unfix matrix`: plans few cells that cover a matrix file's options, splits and runs them."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli import options
from harness.cli.matrix import execution

ACTION_HELP = {
    "plan": "the cells of a matrix file: their number, their coverage, and the reason for each",
    "shards": "the cells split over machines, by their expected time",
    "run": "run the cells, here or on many machines",
}
FILE_HELP = "a matrix file, or the name of one in suites/matrices (cpu, h200, …)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar=" | ".join(ACTION_HELP), required=True)
    subs = {
        name: actions.add_parser(name, help=about, description=about)
        for name, about in ACTION_HELP.items()
    }
    plan = subs["plan"]
    plan.add_argument("file", type=Path, metavar="FILE", help=FILE_HELP)
    plan.add_argument("--wide", action="store_true", help="every cell, with its command")
    options.add_json(plan)
    shards = subs["shards"]
    shards.add_argument("of", type=int, metavar="N", help="how many machines")
    shards.add_argument("file", type=Path, metavar="FILE", help=FILE_HELP)
    shards.add_argument(
        "--costs",
        type=Path,
        metavar="STORE",
        help="take the cells' seconds from this store, the same on every machine "
        "(default: all cells count alike)",
    )
    shards.add_argument(
        "--github", action="store_true", help="one line of JSON, for a dynamic GitHub matrix"
    )
    options.add_json(shards)
    execution.add_arguments(subs["run"])


def run_command(arguments: argparse.Namespace) -> int:
    if arguments.action == "run":
        return execution.run_matrix(arguments)
    from harness.cli.matrix import plan_command

    if arguments.action == "plan":
        return plan_command.run_plan(arguments)
    return plan_command.run_shards(arguments)
