"""`unfix bisect`: finds the fix behind a symptom, over toggles, releases or commits."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import msgspec

from harness.cli import guard_runs, options, run_output
from harness.cli.command_parser import CommandParser
from harness.cli.commands import KINDS
from harness.core.errors import CommandLineError, UnfixError
from harness.patching import bootstrap
from harness.runs.bisect.outcome_rules import OutcomeRules
from harness.runs.bisect.request import BisectRequest, EarlierSearch

KIND_HELP = {
    "toggles": "the fixes whose absence has this symptom, or with --enable those that mend it",
    "releases": "the releases between which the outcome changes, and the toggles that explain it",
    "commits": "the same in a checkout of SGLang: git bisect, with toggles held at each commit",
}
EPILOG = (
    "COMMAND is anything that ends with 0 when all is well and with another code when the "
    "symptom shows; 125 says 'cannot tell'. A guard of ours is named instead: its test, or "
    "its file::test."
)


def add_arguments(parser: CommandParser) -> None:
    kinds = parser.add_subparsers(dest="over", metavar="toggles|releases|commits", required=True)
    for kind, about in KIND_HELP.items():
        sub = kinds.add_parser(kind, help=about, description=about, epilog=EPILOG)
        sub.passthrough_owner = "COMMAND"
        names = " [TOGGLE …]" if kind == "toggles" else ""
        sub.usage = f"unfix bisect {kind}{names} [OPTIONS] -- COMMAND …"
        if kind == "toggles":
            sub.add_argument("names", nargs="*", metavar="TOGGLE", help="ids, families or globs")
            sub.add_argument(
                "--release",
                metavar="R",
                help="a managed version, or 'current' (default: the SGLang of this interpreter, "
                "else the newest managed one)",
            )
            sub.add_argument(
                "--enable", action="store_true", help="the command fails: which fixes mend it"
            )
            _add_flaky_options(sub)
        else:
            sub.add_argument("--good", required=False, metavar="A", help="where it passes")
            sub.add_argument("--bad", required=False, metavar="B", help="where it fails")
        if kind == "commits":
            sub.add_argument("--repo", type=Path, metavar="DIR", help="a checkout of SGLang")
            sub.add_argument(
                "--release", metavar="R", help="whose python and packages the commits run on"
            )
        else:
            sub.add_argument("--all", action="store_true", help="all sets, not one of the smallest")
            sub.add_argument("--dry-run", action="store_true", help="the plan, and nothing is run")
            sub.add_argument("-j", "--jobs", type=int, metavar="N", help="runs at a time")
            _add_guard_options(sub)
        if kind == "releases":
            sub.add_argument(
                "--among", metavar="IDS", help="only these releases (a,b,…), and the two ends"
            )
            sub.add_argument(
                "--toggle", action="append", default=[], metavar="T", help="only these may explain"
            )
        _add_judging_options(sub)
        _add_shared_options(sub)


def _add_flaky_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="flaky: run a set up to N times"
    )
    parser.add_argument(
        "--confidence", type=float, default=0.99, metavar="C", help="then: how sure (0.99)"
    )


def _add_guard_options(parser: argparse.ArgumentParser) -> None:
    options.add_device(parser)
    parser.add_argument(
        "--profile", choices=("smoke", "default", "nightly"), default="default", help="of a guard"
    )
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory for a run of a guard")


def _add_judging_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=float, metavar="S", help="seconds a run may take")
    parser.add_argument(
        "--symptom", default="", metavar="REGEX", help="a failure counts only if its output has it"
    )
    parser.add_argument(
        "--metric", default="", metavar="REGEX", help="judge by a number: the last match's group"
    )
    parser.add_argument("--below", type=float, metavar="X", help="it fails if that is lower")
    parser.add_argument("--above", type=float, metavar="X", help="it fails if that is higher")
    parser.add_argument("--serve", default="", metavar="CMD", help="a server beside the command")
    parser.add_argument(
        "--ready", default="", metavar="URL", help="answers once the server is ready; {port} is one"
    )


def _add_shared_options(parser: argparse.ArgumentParser) -> None:
    for side in ("applied", "reverted"):
        parser.add_argument(
            f"--hold-{side}",
            action="append",
            default=[],
            metavar="IDS",
            help=f"every run has these fixes {side} (a,b,…)",
        )
    parser.add_argument("--resume", nargs="?", const="", metavar="ID", help="go on with a search")
    parser.add_argument("--replay", metavar="ID", help="a stored search or a record again, unrun")
    options.add_toggle_folders(parser)
    run_output.add_arguments(parser, junit=False)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    from harness.cli.bisect import dry_run, execution, preparation
    from harness.store.database import Store

    if arguments.over == "toggles" and not arguments.words:
        # A node id names a guard, at any place among the toggles.
        arguments.words = [name for name in arguments.names if "::" in name]
        arguments.names = [name for name in arguments.names if "::" not in name]
    _check_arguments(arguments)
    request = _make_request(arguments)
    if getattr(arguments, "dry_run", False) and isinstance(request, BisectRequest):
        return dry_run.print_plan(request, arguments.json)
    store = Store()
    prepared = preparation.prepare_search(request, store)
    execution.run_search(prepared, store)
    hint = f"`unfix bisect {request.kind} --resume` goes on"
    return run_output.finish_run(KINDS["bisect"], prepared.search, arguments, hint)


def _make_request(arguments: argparse.Namespace) -> BisectRequest | EarlierSearch:
    folders = [str(folder.resolve()) for folder in arguments.toggles]
    repository = getattr(arguments, "repo", None)
    repository = str(repository.resolve()) if repository else ""
    is_replay = arguments.replay is not None
    if is_replay or arguments.resume is not None:
        name = arguments.replay if is_replay else arguments.resume
        return EarlierSearch(arguments.over, name, is_replay, repository, folders)
    rules = OutcomeRules(arguments.metric, arguments.below, arguments.above, arguments.symptom)
    rules.check()
    device = getattr(arguments, "device", "cpu")
    common = BisectRequest(
        kind=arguments.over,
        command=arguments.words,
        rules=rules,
        toggle_folders=folders,
        release=guard_runs.name_release(getattr(arguments, "release", None), device),
        repository=repository,
        time_limit=arguments.limit,
        server_command=arguments.serve,
        ready_url=arguments.ready,
        hold_applied=arguments.hold_applied,
        hold_reverted=arguments.hold_reverted,
    )
    if arguments.over == "commits":
        return msgspec.structs.replace(common, good=arguments.good, bad=arguments.bad)
    guarded = msgspec.structs.replace(
        common,
        find_all=arguments.all,
        jobs=arguments.jobs,
        device=arguments.device,
        profile=arguments.profile,
        memory_gib=arguments.memory,
    )
    if arguments.over == "toggles":
        return msgspec.structs.replace(
            guarded,
            candidates=arguments.names,
            enable=arguments.enable,
            repeat=arguments.repeat,
            confidence=arguments.confidence,
        )
    among = arguments.among
    return msgspec.structs.replace(
        guarded,
        good=guard_runs.name_release(arguments.good, device),
        bad=guard_runs.name_release(arguments.bad, device),
        candidates=arguments.toggle,
        among=None
        if among is None
        else [guard_runs.name_release(word, device) for word in bootstrap.split_ids(among)],
    )


def _check_arguments(arguments: argparse.Namespace) -> None:
    if arguments.resume is not None and arguments.replay is not None:
        raise UnfixError("--resume runs what is missing, --replay runs nothing: say one of them")
    again = arguments.resume is not None or arguments.replay is not None
    if not arguments.words and not again:
        raise CommandLineError(
            f"it needs a command, behind `--`: unfix bisect {arguments.over} … -- COMMAND",
            arguments.usage,
        )
    if arguments.words and again:
        raise UnfixError("a search that goes on, or is replayed, has its command already")
    if arguments.over != "toggles" and not again and not (arguments.good and arguments.bad):
        raise CommandLineError(
            "it needs --good, where the command passes, and --bad, where it fails", arguments.usage
        )
    if arguments.over == "commits" and not again and not arguments.repo:
        raise CommandLineError("it needs --repo, a checkout of SGLang", arguments.usage)
    positive = [arguments.limit, getattr(arguments, "jobs", None), getattr(arguments, "memory", 1)]
    if any(value is not None and not 0 < value < math.inf for value in positive):
        raise UnfixError("-j, --limit and --memory are positive numbers")
    if arguments.over == "toggles":
        if arguments.repeat < 1:
            raise UnfixError("--repeat is a number of runs")
        if not 0.5 < arguments.confidence < 1:
            raise UnfixError("--confidence is between 0.5 and 1")
        if arguments.repeat == 1 and arguments.confidence != 0.99:
            raise UnfixError("--confidence goes with --repeat")
