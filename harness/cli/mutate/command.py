"""`unfix mutate`: faults of the known kinds, made anywhere, and which of them the suites notice."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "unfix mutate [TARGET…] [--release R] [--operators A,B] [--diff A..B] [OPTIONS]\n"
        "       unfix mutate [TARGET…] --list\n"
        "       unfix mutate --resume [RUN]\n"
        "       unfix mutate [TARGET…] --keep ID [--as SLUG]"
    )
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="module, module:function, a family of toggles or a toggle (default: all families)",
    )
    parser.add_argument(
        "--release",
        metavar="R",
        help="one managed version, or 'current' (default: the later one of --diff, the SGLang of "
        "this interpreter, else the newest managed one that is installed here)",
    )
    options.add_device(parser)
    parser.add_argument(
        "--diff", default="", metavar="A..B", help="only what changed from A to B: releases, or "
        "commits of the checkout in this folder",
    )  # fmt: skip
    parser.add_argument("--operators", default="", metavar="A,B", help="only faults of these kinds")
    parser.add_argument("--list", action="store_true", help="make the faults, and run nothing")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="ID", help="only these (a,b,…)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="a sample of so many")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sample (0)")
    parser.add_argument(
        "--at-least", type=float, metavar="P", help="percent killed of those reached, else red"
    )
    parser.add_argument("--profile", choices=("smoke", "default", "nightly"), default="default")
    parser.add_argument(
        "--examples",
        type=int,
        default=10,
        metavar="N",
        help="times as many for what survived a first look (10); 1: no second look",
    )
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="faults at a time")
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory for a fault's guards")
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="SUITE",
        help="ask these suites alone: folders of suites/ by name, paths, or nodes of tests",
    )
    parser.add_argument(
        "--equal", action="store_true", help="look as well at faults that are said to be equal"
    )
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with a run that was stopped"
    )
    parser.add_argument("--keep", default="", metavar="ID", help="make a fault a toggle")
    parser.add_argument("--as", dest="slug", default="", metavar="SLUG", help="the toggle's id")
    parser.add_argument("--html", type=Path, metavar="FILE", help="the page, in one file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="for a job's summary")
    parser.add_argument("--record", type=Path, metavar="FILE", help="all of it as JSON, to keep")
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    from harness.cli.mutate import execution

    # What is asked, wherever it stands: faults are made in modules, guards lie in files.
    arguments.targets, guards = options.split_names_and_paths(arguments.targets, arguments.usage)
    arguments.suite += guards
    return execution.run_mutate(arguments)
