"""`unfix rehearse MODEL -- SERVER ARGUMENTS`: a deployment at full size on the virtual GPU."""

from __future__ import annotations

import argparse
import os
import re
from functools import partial
from pathlib import Path

import msgspec

from harness.cli import guard_runs, options, run_output
from harness.cli.command_parser import CommandParser
from harness.cli.commands import KINDS
from harness.cli.lane_execution import execute_in_lanes
from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus
from harness.patching import bootstrap
from harness.releases.server_arguments import refuse_unknown_arguments
from harness.runs.rehearse import comparison
from harness.runs.rehearse.deployment import (
    CARDS_OF_A_HOST,
    Deployment,
    make_deployment,
    read_deployments,
)
from harness.runs.rehearse.request import RehearseRequest, RehearseWorkerRequest
from harness.store.database import Store
from harness.store.rehearse.table import RehearsalTable
from harness.store.rehearse.values import DeploymentResult, RehearsalRun
from harness.workers.release_target import ReleaseTarget

_TOGGLE_VARIABLES = frozenset({bootstrap.REVERT_VARIABLE, bootstrap.ENABLE_VARIABLE})
_PLAIN_VALUE = re.compile(r"-?\d+(\.\d+)?|true|false|yes|no|on|off", re.IGNORECASE)
_SECRET_NAME = re.compile(r"TOKEN$|KEY|SECRET|PASSWORD|CREDENTIAL")


def add_arguments(parser: CommandParser) -> None:
    parser.passthrough_owner = "SERVER"
    parser.usage = (
        "unfix rehearse MODEL … [--gpu H200] [--gpus N] [--release R] [OPTIONS] [-- SERVER "
        "ARGUMENTS …]"
    )
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="models of suites/rehearse/models, or deployments of suites/rehearse/deployments.yaml",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a config.json in place of a model's name"
    )
    parser.add_argument("--all", action="store_true", help="the fixed set of deployments")
    parser.add_argument(
        "--no-thresholds",
        dest="thresholds",
        action="store_false",
        help="do not search the smallest setting at which a finding begins",
    )
    parser.add_argument(
        "--all-layers",
        action="store_true",
        help="run the layers that launch as an earlier one of a batch does, too",
    )
    parser.add_argument(
        "--gpu", metavar="CARD", help="the GPU that is played: H100, H200 (default), B200"
    )
    parser.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help=f"cards of the host ({CARDS_OF_A_HOST}); `-- --tp N` says how many serve the model",
    )
    options.add_release(parser)
    parser.add_argument(
        "--diff", default="", metavar="A..B", help="what changed from one release to the other"
    )
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="deployments at a time")
    parser.add_argument(
        "--seconds", type=float, default=300.0, metavar="S", help="limit of one deployment (300)"
    )
    options.add_directions(parser)
    run_output.add_arguments(parser, junit=False)
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    request = options.make_request(RehearseRequest, arguments)
    deployments = list_deployments(request, arguments.words)
    targets = guard_runs.prepare_targets(
        request.releases, only_ready=True, toggle_folders=request.toggles
    )
    for target in targets:
        refuse_unknown_arguments(arguments.words, target.sources)
    if not request.diff:
        run = rehearse_release(targets[0], request, deployments)
        return run_output.finish_run(KINDS["rehearse"], run, arguments)
    runs = []
    for target in targets:
        runs.append(rehearse_release(target, request, deployments))
        if runs[-1].status is not RunStatus.FINISHED:
            return 130
    return show_changes(runs, arguments)


def show_changes(runs: list[RehearsalRun], arguments: argparse.Namespace) -> int:
    """Show what changed from the first run to the second; 1 if something became worse."""
    from reports.rehearse import changes as change_reports
    from reports.rehearse import terminal

    changes = comparison.compare_runs(*runs)
    data = {"runs": [run.id for run in runs], "changes": msgspec.to_builtins(changes)}
    is_worse = any(change.is_worse for change in changes)
    run_output.write_outputs(
        arguments,
        run_output.get_default_page(f"rehearse-{runs[0].id}..{runs[1].id}"),
        lambda: change_reports.render_page(runs, changes),
        lambda: change_reports.render_markdown(runs, changes),
        data,
        is_red=is_worse,
    )
    if arguments.json:
        options.print_json(data)
    else:
        terminal.print_changes(runs, changes, options.make_console())
    return int(is_worse)


def rehearse_release(
    target: ReleaseTarget, request: RehearseRequest, deployments: list[Deployment]
) -> RehearsalRun:
    """Rehearse on one release, to the end or until Ctrl-C."""
    run_id, started = guard_runs.make_id_and_start()
    options, variables = list_options(target, request), list_variables()

    def make_work(folder: Path) -> RehearseWorkerRequest:
        return RehearseWorkerRequest(
            folder=str(folder),
            jobs=min(guard_runs.choose_job_count("cpu", request.jobs), len(deployments)),
            seconds=request.seconds,
            deployments=[
                msgspec.structs.replace(deployment, options=options, variables=variables)
                for deployment in deployments
            ],
        )

    run = RehearsalRun(
        id=run_id,
        started=started,
        release=target.name,
        command=run_output.get_recorded_command(),
        code=guard_runs.digest_lane_code(target, request.toggles),
        planned=[deployment.name for deployment in deployments],
        has_thresholds=request.thresholds,
    )
    worker = "harness.runs.rehearse.rehearse_worker", request, make_work
    table = RehearsalTable(Store())
    execute_in_lanes(run, target, *worker, table, "deployments", list_findings)
    return run


def list_options(target: ReleaseTarget, request: RehearseRequest) -> list[str]:
    """List what a command needs to rehearse as this call does, on the same release."""
    lists = ("--revert", request.revert), ("--enable", request.enable)
    toggles = [word for name, ids in lists if ids for word in (name, ",".join(ids))]
    folders = [word for folder in request.toggles for word in ("--toggles", str(folder))]
    layers = ["--all-layers"] * request.all_layers
    return ["--release", target.requested_as or target.name, *toggles, *folders, *layers]


def list_variables() -> dict[str, str]:
    """List the variables of toggles, and those of SGLang whose value is a number or a switch.

    No other value is printed or recorded: it may be a folder of this machine, or a secret.
    """
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in _TOGGLE_VARIABLES
        or (
            name.startswith("SGLANG_")
            and _PLAIN_VALUE.fullmatch(value)
            and not _SECRET_NAME.search(name)
        )
    }


def list_deployments(request: RehearseRequest, words: list[str]) -> list[Deployment]:
    """List the deployments of a call: models with the words behind `--`, or those of the set."""
    return [
        msgspec.structs.replace(
            deployment, thresholds=request.thresholds, all_layers=request.all_layers
        )
        for deployment in _find_deployments(request, words)
    ]


def _find_deployments(request: RehearseRequest, words: list[str]) -> list[Deployment]:
    known = read_deployments()
    names = list(known) if request.all else request.models
    make = partial(make_deployment, gpu=request.gpu, gpus=request.gpus, arguments=words)
    if request.config is not None:
        return [make(request.config.stem, request.config)]
    own = " ".join(["--gpu"] * bool(request.gpu) + ["--gpus"] * bool(request.gpus) + words)
    deployments = []
    for name in names:
        if name in known and own:
            raise UnfixError(
                f"{name} is a deployment with a card and server arguments of its own, so {own} "
                f"cannot apply; name its model for others: {known[name].command}"
            )
        deployments.append(known[name] if name in known else make(name, None))
    return deployments


def list_findings(result: DeploymentResult) -> list[str]:
    return [f"{finding.phase}: {finding.headline}" for finding in result.reachable]
