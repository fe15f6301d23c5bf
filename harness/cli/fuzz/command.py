"""`unfix fuzz`: runs suites for a budget of time, and stores their failures."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli import options, run_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "unfix fuzz [SUITE…] [--release R,…] [--revert IDS] [--for 30m] [OPTIONS]\n"
        "       unfix fuzz --replay FILE [--release R]\n"
        "       unfix fuzz --keep FILE"
    )
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help="folders of suites/ by name, paths, or nodes of tests (default: all suites)",
    )
    parser.add_argument(
        "--release",
        action="append",
        default=[],
        metavar="R",
        help="managed versions (a,b,…), 'all' that are installed, or 'current'",
    )
    options.add_device(parser, with_virtual=True)
    options.add_directions(parser)
    parser.add_argument(
        "--for",
        dest="budget",
        default="10m",
        metavar="TIME",
        help="the budget, as 45s, 30m, 8h or 1h30m (default: 10m)",
    )
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="slices at a time")
    parser.add_argument("--seed", type=int, metavar="N", help="of the run (default: a new one)")
    parser.add_argument(
        "--limit", type=float, default=60.0, metavar="S", help="seconds for an example"
    )
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory for a slice")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run a stored failure again")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="make a failure a regression of its suite"
    )
    options.add_toggle_folders(parser)
    run_output.add_arguments(parser, junit=False)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    from harness.cli.fuzz import execution

    return execution.run_fuzz(options.make_request(execution.FuzzCall, arguments), arguments)
