"""`unfix rehearse MODEL -- SERVER ARGUMENTS`: a deployment at full size on the virtual GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli import guard_runs, options, run_kinds, run_output
from harness.cli.command_parser import CommandParser
from harness.cli.process_cleanup import end_processes_on_exit
from harness.cli.progress_display import ProgressBars
from harness.core import machine, paths
from harness.core.errors import UnfixError
from harness.runs.rehearse.deployment import (
    CARDS_OF_A_HOST,
    Deployment,
    make_deployment,
    read_deployments,
)
from harness.runs.rehearse.request import RehearseRequest, RehearseWorkerRequest
from harness.runs.rehearse.runner import RehearsalListener, RehearsalRunner
from harness.store.database import Store
from harness.store.rehearse.values import DeploymentResult, RehearsalRun
from harness.workers.release_target import ReleaseTarget


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
        "--gpu", default="H200", metavar="CARD", help="the GPU that is played: H100, H200, B200"
    )
    parser.add_argument(
        "--gpus",
        type=int,
        default=CARDS_OF_A_HOST,
        metavar="N",
        help=f"cards of the host ({CARDS_OF_A_HOST}); `-- --tp N` says how many serve the model",
    )
    parser.add_argument(
        "--release",
        metavar="R",
        help="one managed version, or 'current' (default: the SGLang of this interpreter, else the "
        "newest managed one that is installed here)",
    )
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="deployments at a time")
    parser.add_argument(
        "--seconds", type=float, default=300.0, metavar="S", help="limit of one deployment (300)"
    )
    for name in ("revert", "enable"):
        parser.add_argument(
            f"--{name}", action="append", default=[], metavar="ID", help=f"{name} these toggles"
        )
    run_output.add_arguments(parser, junit=False)
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    request = options.make_request(RehearseRequest, arguments)
    deployments = list_deployments(request, arguments.words)
    target = guard_runs.prepare_targets(
        [request.release] if request.release else [], only_ready=True
    )[0]
    jobs = min(guard_runs.choose_job_count("cpu", request.jobs), len(deployments))
    run_id, started = guard_runs.make_id_and_start()
    work = RehearseWorkerRequest(
        folder=str(paths.state_folder() / "runs" / run_id),
        jobs=jobs,
        seconds=request.seconds,
        deployments=deployments,
    )
    run = RehearsalRun(
        id=run_id,
        started=started,
        release=target.name,
        command=run_output.get_recorded_command(),
        toggles=[f"-{one}" for one in request.revert] + [f"+{one}" for one in request.enable],
        planned=[deployment.name for deployment in deployments],
    )
    return _run_until_stopped(target, request, work, run, arguments)


def list_deployments(request: RehearseRequest, words: list[str]) -> list[Deployment]:
    """List the deployments of a call: models with the words behind `--`, or those of the set."""
    known = read_deployments()
    if request.all:
        return list(known.values())
    if request.config is not None:
        return [
            make_deployment(request.config.stem, request.config, request.gpu, request.gpus, words)
        ]
    deployments = []
    for name in request.models:
        if name not in known:
            deployments.append(make_deployment(name, None, request.gpu, request.gpus, words))
        elif words:
            raise UnfixError(
                f"{name} is a deployment with its own server arguments; with others, name its "
                f"model: unfix rehearse {known[name].model} -- {' '.join(words)}"
            )
        else:
            deployments.append(known[name])
    return deployments


def _run_until_stopped(
    target: ReleaseTarget,
    request: RehearseRequest,
    work: RehearseWorkerRequest,
    run: RehearsalRun,
    outputs: argparse.Namespace,
) -> int:
    facts = machine.collect_machine_facts(str(target.python))
    run.versions, run.machine = facts.pop("versions"), facts
    is_stopped = False
    try:
        with end_processes_on_exit(), RehearsalProgress(run) as progress:
            RehearsalRunner(target, request, work, run, Store().rehearse, progress).execute()
    except KeyboardInterrupt:
        is_stopped = True
    code = run_output.write_and_print_run(run_kinds.REHEARSE, run, outputs)
    return 130 if is_stopped else code


class RehearsalProgress(ProgressBars, RehearsalListener):
    """A listener that shows a bar on a terminal, and lines in a log."""

    def __init__(self, run: RehearsalRun) -> None:
        super().__init__()
        self.task = self.bar.add_task(f"SGLang {run.release}: importing", total=None)
        if self.bar.disable:
            self.print_line(f"SGLang {run.release} on a virtual GPU: importing")

    def report_import(self, seconds: float) -> None:
        self.print_line(f"imported in {seconds:.0f} s")

    def report_result(self, run: RehearsalRun, result: DeploymentResult) -> None:
        done, planned = len(run.deployments), len(run.planned)
        self.bar.update(self.task, description="deployments", completed=done, total=planned)
        for finding in result.reachable:
            self.print_line(f"{result.name}: {finding.phase}: {finding.headline}")
        if self.bar.disable:
            self.log_occasionally(f"{done} of {planned} deployments")
