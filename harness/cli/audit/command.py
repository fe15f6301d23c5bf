"""`unfix audit`: finds integer overflows in the addresses of a release's kernels."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli import options, run_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "unfix audit [TARGET…] [--release R | --from PATH] [OPTIONS]\n"
        "       unfix audit [TARGET…] [--from CHECKOUT] --diff A..B\n"
        "       unfix audit [TARGET…] --upstream N\n"
        "       unfix audit --again RECORD [--device cuda] [--for TIME]"
    )
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="a kernel, a module, a file, a folder of kernels such as moe, or toggles by id or "
        "family (default: all)",
    )
    parser.add_argument(
        "--release",
        metavar="R",
        help="a managed release (default: the newest), or 'all': since when each finding lives",
    )
    parser.add_argument(
        "--from", dest="place", type=Path, metavar="PATH", help="a checkout, a wheel or a folder"
    )
    parser.add_argument(
        "--diff",
        default="",
        metavar="A..B",
        help="only what B has and A had not: releases, paths, or commits of the checkout of --from",
    )
    parser.add_argument("--limits", type=Path, metavar="FILE", help="another file of limits")
    parser.add_argument(
        "--launches",
        type=Path,
        metavar="FILE",
        help="launches that were made (default: the suites'): UNFIX_LAUNCHES=FILE in front of any "
        "command writes them",
    )
    parser.add_argument(
        "--exceptions", type=Path, metavar="FILE", help="another file of known findings"
    )
    parser.add_argument(
        "--no-rehearsal",
        dest="rehearsal",
        action="store_false",
        help="rank nothing by what deployments reach: every finding by arithmetic counts",
    )
    parser.add_argument(
        "--upstream", type=int, metavar="N", help="the text for a report of finding N, in Markdown"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="with cuda, findings are run on this machine's GPU as well, in real memory",
    )
    parser.add_argument(
        "--again",
        type=Path,
        metavar="RECORD",
        help="the findings of this record are ranked anew, and nothing is read; with --device cuda "
        "they are run as well",
    )
    parser.add_argument(
        "--for",
        dest="budget",
        default="10m",
        metavar="TIME",
        help="with --device cuda: what has not begun by then is not run (10m)",
    )
    parser.add_argument("--all", action="store_true", help="list every finding and every kernel")
    parser.add_argument("-j", "--jobs", type=int, default=2, metavar="N", help="processes (2)")
    run_output.add_arguments(parser, junit=False)
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="for code scanning")
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    from harness.cli.audit import execution

    return execution.run_audit(arguments)
