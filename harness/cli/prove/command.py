"""`unfix prove` and `unfix lifecycle`: run guards on both sides of a fix, or on plain releases."""

from __future__ import annotations

import argparse
import dataclasses

from harness.cli import options, run_output
from harness.cli.command_parser import CommandParser
from harness.cli.commands import KINDS
from harness.cli.prove.call import ProveCall
from harness.core.device import VIRTUAL


def add_arguments(parser: CommandParser) -> None:
    parser.passthrough_owner = "pytest"
    parser.usage = f"{parser.prog} [TOGGLE or PATH …] [OPTIONS] [-- PYTEST ARGUMENTS]"
    parser.add_argument(
        "names",
        nargs="*",
        metavar="TOGGLE or PATH",
        help="toggles as ids, families or globs; guards as files, folders or file.py::test",
    )
    parser.add_argument(
        "--release",
        action="append",
        default=[],
        metavar="R",
        help="managed versions (a,b,…), 'all', or 'current'; what is missing is installed",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda", VIRTUAL), default=ProveCall.device
    )
    parser.add_argument(
        "--profile", choices=("smoke", "default", "nightly"), default=ProveCall.profile
    )
    parser.add_argument(
        "--proposed", action="store_true", help="proposed fixes, by the tests of their findings"
    )
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="tests at a time")
    parser.add_argument("-k", metavar="EXPRESSION", help="only guards that pytest selects by it")
    parser.add_argument(
        "--limit",
        type=float,
        default=ProveCall.limit,
        metavar="S",
        help="seconds for a test on one side",
    )
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory for a test")
    parser.add_argument(
        "--shard", default=ProveCall.shard, metavar="K/N", help="one part of the cells"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="draws the order of the sides and their numbers"
    )
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with a run that was stopped"
    )
    parser.add_argument(
        "--failed", nargs="?", const="", metavar="RUN", help="what an earlier run did not prove"
    )
    options.add_toggle_folders(parser)
    run_output.add_arguments(parser)
    options.add_json(parser)
    parser.epilog = "Arguments behind `--` are pytest's: -m, -p, …"


def run_command(arguments: argparse.Namespace) -> int:
    from harness.cli.prove import execution

    call = options.make_request(ProveCall, arguments)
    if call.command == "lifecycle" and call.resume is None and call.failed is None:
        call = dataclasses.replace(call, release=call.release or ["all"])
    run = execution.run_proof(call)
    hint = f"finished cells are stored: `unfix {call.command} --resume` continues the run"
    code = run_output.finish_run(KINDS["prove"], run, arguments, hint)
    return code if code == 130 else execution.find_start_error(run) or code
