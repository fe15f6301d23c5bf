"""`unfix mutate`: makes faults of known kinds, and reports those that the suites detect."""

from __future__ import annotations

import argparse

from harness.cli import options, run_output
from harness.core.errors import UnfixError


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
    options.add_device(parser, with_virtual=True)
    parser.add_argument(
        "--diff", default="", metavar="A..B", help="only what changed from A to B: releases, or "
        "commits of the checkout in this folder",
    )  # fmt: skip
    parser.add_argument("--operators", default="", metavar="A,B", help="only faults of these kinds")
    parser.add_argument("--list", action="store_true", help="list the faults, and run nothing")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="ID", help="only these (a,b,…)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="a sample of N faults")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the sample (0)")
    parser.add_argument(
        "--at-least",
        type=float,
        metavar="P",
        help="fail below this percentage killed of reached",
    )
    parser.add_argument("--profile", choices=("smoke", "default", "nightly"), default="default")
    parser.add_argument(
        "--examples",
        type=int,
        default=10,
        metavar="N",
        help="factor for the second attempt on a survivor (10); 1: no second attempt",
    )
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="faults at a time")
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory for a fault's guards")
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="SUITE",
        help="run these suites alone: folders of suites/ by name, paths, or tests' node ids",
    )
    parser.add_argument(
        "--equal", action="store_true", help="run the faults that are recorded as equivalent, too"
    )
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with a stopped run"
    )
    parser.add_argument("--keep", default="", metavar="ID", help="write a fault as a toggle")
    parser.add_argument("--as", dest="slug", default="", metavar="SLUG", help="the toggle's id")
    run_output.add_arguments(parser, junit=False)
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    from harness.cli.mutate import execution
    from harness.runs.mutate.request import MutateRequest

    # Names of targets and paths of guards may be in any order.
    arguments.targets, guards = options.split_names_and_paths(arguments.targets, arguments.usage)
    arguments.suite += guards
    arguments.toggles = [folder.resolve() for folder in arguments.toggles]
    if arguments.words:
        raise UnfixError("`unfix mutate` takes nothing behind `--`: --suite names guards")
    if arguments.slug and not arguments.keep:
        raise UnfixError("--as names the toggle that --keep makes")
    request = options.make_request(MutateRequest, arguments)
    if arguments.keep:
        return execution.keep_fault(request, arguments.keep, arguments.slug, arguments.json)
    if arguments.list:
        return execution.list_faults(request, arguments.json)
    return execution.run_mutate(request, arguments.resume, arguments)
