"""`unfix eval`: compares a served model's answers with a baseline's, item by item."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli import options, run_output
from harness.cli.command_parser import CommandParser
from harness.core.device import VIRTUAL


def add_arguments(parser: CommandParser) -> None:
    parser.passthrough_owner = "SGLang"
    parser.usage = (
        "unfix eval [MATRIX] [--release R] [--revert IDS] [--against WHAT] [OPTIONS] "
        "[-- SGLANG ARGUMENTS]"
    )
    parser.add_argument(
        "matrix",
        nargs="?",
        default="",
        metavar="MATRIX",
        help="a matrix file, or the name of one in suites/matrices (cpu, h200, …); "
        "without one a single configuration is served, with the arguments behind `--`",
    )
    parser.add_argument(
        "--model", default="", help="a trained model by its name, or a folder (default: llama)"
    )
    parser.add_argument("--draft", default="", help="its draft model, for speculative decoding")
    parser.add_argument(
        "--task",
        dest="tasks",
        action="extend",
        type=options.split_names,
        default=[],
        metavar="T",
        help="recall, copying, needle, shared, or any of lm-eval's by name (a,b,…)",
    )
    parser.add_argument("--release", metavar="R", help="a managed version, or 'current'")
    options.add_directions(parser)
    parser.add_argument(
        "--against",
        metavar="WHAT",
        help="the baseline: a release, 'transformers', or other SGLang arguments in quotes "
        "(default: the same with nothing toggled, or else plain transformers)",
    )
    parser.add_argument(
        "--only",
        type=options.split_names,
        default=[],
        metavar="A,B",
        help="only these configurations of the matrix",
    )
    parser.add_argument(
        "--no-faults",
        dest="without_faults",
        action="store_true",
        help="of a matrix: plant no faults",
    )
    parser.add_argument("--items", type=int, metavar="N", help="of each task, and no more (200)")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="a doubtful comparison asks for up to N"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the items (default: 0)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", VIRTUAL))
    parser.add_argument("--dtype", default="", metavar="T", help="of the weights")
    parser.add_argument(
        "--stand-in",
        dest="stand_ins",
        action="extend",
        type=options.split_names,
        default=[],
        metavar="NAME",
        help="tree-kernels: SGLang's Triton kernels for EAGLE on a CPU; checked: every "
        "Triton kernel of the engine under check; of a matrix, in each of its configurations",
    )
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="servers at a time")
    parser.add_argument("--concurrency", type=int, metavar="N", help="requests at a time")
    parser.add_argument(
        "--afresh",
        dest="always_cold",
        action="store_true",
        help="start each server as a user does, fork none",
    )
    parser.add_argument(
        "--patience", type=float, default=600.0, metavar="S", help="seconds for a server to start"
    )
    parser.add_argument(
        "--judge-again",
        metavar="RECORD",
        type=Path,
        help="serve nothing: compare the answers that a --record file of this matrix holds",
    )
    options.add_toggle_folders(parser)
    run_output.add_arguments(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    from harness.cli.eval import execution

    return execution.run_evaluation(arguments)
