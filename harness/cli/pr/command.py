"""`unfix pr`: reviews a change of SGLang, from one commit of a checkout to another."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli import options, run_output
from harness.cli.commands import KINDS
from harness.core.errors import UnfixError
from harness.store.pr.line_results import ReviewResult
from harness.store.pr.values import PrPart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "unfix pr CHECKOUT BASE..HEAD [--only PARTS] [OPTIONS]\n"
        "       unfix pr CHECKOUT --base BASE         records what reviews need of a base\n"
        "       unfix pr --join RUN… [--only PARTS]   one review of the parts of several"
    )
    parser.add_argument(
        "checkout", nargs="?", type=Path, metavar="CHECKOUT", help="a checkout of SGLang"
    )
    parser.add_argument(
        "range",
        nargs="?",
        default="",
        metavar="BASE..HEAD",
        help="two commits or branches; BASE...HEAD is what HEAD changed since it left BASE, and "
        "BASE.. the files as they are",
    )
    parser.add_argument("--base", metavar="BASE", help="record the lines that guards run on BASE")
    parser.add_argument(
        "--join",
        nargs="+",
        default=[],
        metavar="RUN",
        help="ids of stored runs, or files of --record",
    )
    parser.add_argument(
        "--only",
        dest="parts",
        type=_parse_parts,
        default=list(PrPart),
        metavar="PARTS",
        help=f"a,b,… of {', '.join(PrPart)} (default: all)",
    )
    parser.add_argument(
        "--faults",
        dest="fault_limit",
        type=int,
        default=40,
        metavar="N",
        help="a sample of N faults (40)",
    )
    parser.add_argument(
        "--architectures",
        dest="zoo_limit",
        type=int,
        metavar="N",
        help="rows of the zoo, N at most (as many as the budget allows)",
    )
    parser.add_argument(
        "--deployments",
        dest="deployment_limit",
        type=int,
        metavar="N",
        help="to rehearse, N at most (as many as the budget allows)",
    )
    parser.add_argument(
        "--budget",
        type=lambda text: options.parse_budget(text, "--budget"),
        default="5m",
        metavar="TIME",
        help="of a review whose base is recorded: architectures and deployments that do not fit "
        "are left out by name (5m)",
    )
    parser.add_argument(
        "--accept",
        dest="accepted",
        type=_parse_results,
        default=[],
        metavar="RESULTS",
        help="results that end with 0 all the same: not-run, incomplete, worse",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the sample (0)")
    parser.add_argument("--profile", choices=("smoke", "default", "nightly"), default="default")
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="tests at a time")
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory for a test")
    run_output.add_arguments(parser, junit=False)
    parser.add_argument(
        "--tests", type=Path, metavar="FOLDER", help="write a test for each change that was found"
    )
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="for code scanning")
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    from harness.cli.pr import execution
    from harness.runs.pr.request import PrRequest

    if arguments.join:
        run = execution.join_reviews(arguments.join, arguments.parts, arguments.accepted)
        return run_output.write_and_print_run(KINDS["pr"], run, arguments)
    if arguments.checkout is None or bool(arguments.range) == (arguments.base is not None):
        raise UnfixError(
            "it needs a checkout and a range: unfix pr ~/sglang main...feature; "
            "or a checkout and --base, to record what reviews of that base need"
        )
    request = options.make_request(PrRequest, arguments)
    if arguments.base is not None:
        return execution.record_base(request, arguments.base, arguments.json)
    run = execution.review_change(request)
    if arguments.tests is not None:
        execution.write_tests(run, arguments.tests)
    return run_output.finish_run(KINDS["pr"], run, arguments)


def _parse_results(text: str) -> list[str]:
    words = [word.replace("-", " ") for word in text.split(",") if word]
    known = [result.value for result in ReviewResult if result is not ReviewResult.SAME]
    for word in words:
        if word not in known:
            names = ", ".join(name.replace(" ", "-") for name in known)
            raise UnfixError(f"--accept {word} is no result: there are {names}")
    return words


def _parse_parts(text: str) -> list[PrPart]:
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in list(PrPart):
            raise UnfixError(f"--only {word} is no part: there are {', '.join(PrPart)}")
    return [part for part in PrPart if not words or part in words]
