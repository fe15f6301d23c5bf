"""`unfix zoo`: runs every architecture, tiny, on the virtual GPU of a release."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from harness.cli import guard_runs, options, run_output
from harness.cli.commands import KINDS
from harness.cli.lane_execution import execute_in_lanes
from harness.core import machine
from harness.core.code_digest import compute_digest
from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus
from harness.findings.finding_files import load_findings
from harness.runs.zoo import release_changes
from harness.runs.zoo.architecture import select_rows
from harness.runs.zoo.rank_layout import RankLayout
from harness.runs.zoo.release_changes import ZooChanges
from harness.runs.zoo.request import ZooRequest, ZooWorkerRequest
from harness.sanitizer.device.cards import get_card
from harness.sanitizer.ranks.messages import IN_ORDER, SUM_ORDERS
from harness.store.database import Store
from harness.store.zoo.table import ZooTable
from harness.store.zoo.values import ArchitectureResult, ZooRun
from harness.workers.release_target import ReleaseTarget


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="files of suites/zoo/architectures or fixtures/zoo/families by name (default: all)",
    )
    options.add_release(parser)
    parser.add_argument(
        "--since",
        metavar="R",
        help="what changed from this release on: stored runs if there are any, else new ones",
    )
    parser.add_argument(
        "--card", default="H100", metavar="CARD", help="the GPU that is played: H100, H200, B200"
    )
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="architectures at a time")
    parser.add_argument(
        "--seconds", type=float, default=120.0, metavar="S", help="limit of one architecture (120)"
    )
    options.add_directions(parser)
    parser.add_argument(
        "--check",
        type=lambda text: text.split(","),
        default=[],
        metavar="WORDS",
        help="also check launches: graphs, streams, or both",
    )
    add_layout(parser)
    parser.add_argument(
        "--features",
        nargs="?",
        const="each",
        default="",
        metavar="F",
        help="also serve each architecture with each feature of suites/zoo/features.yaml, with "
        "'pairs' of them, or with these: 'page 16 + LoRA'",
    )
    run_output.add_arguments(parser, junit=False)
    options.add_toggle_folders(parser)
    options.add_json(parser)


def add_layout(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several ranks, compared with one")
    for option, words in (
        ("tp", "ranks that share each layer (default: as many as --ep or --dp)"),
        ("pp", "stages of layers"),
        ("ep", "parts of the experts, among the ranks of --tp"),
        ("dp", "batches of their own, with --enable-dp-attention"),
    ):
        group.add_argument(f"--{option}", type=int, metavar="N", help=words)
    group.add_argument("--enable-dp-attention", action="store_true", help="as SGLang's option")
    group.add_argument(
        "--sum-order",
        choices=SUM_ORDERS,
        default=IN_ORDER,
        help="from which rank on parts are added: another order rounds otherwise",
    )


def read_layout(arguments: argparse.Namespace) -> RankLayout:
    ep, dp, pp = (getattr(arguments, name) or 1 for name in ("ep", "dp", "pp"))
    tp = arguments.tp or max(ep, dp)
    return RankLayout(tp, pp, ep, dp, arguments.enable_dp_attention)


def run_command(arguments: argparse.Namespace) -> int:
    arguments.layout = read_layout(arguments)
    request = options.make_request(ZooRequest, arguments)
    if request.since:
        return compare_releases(request, arguments)
    run = execute_zoo(prepare_target(request, request.release), request)
    return run_output.finish_run(KINDS["zoo"], run, arguments)


def prepare_target(request: ZooRequest, release: str | None) -> ReleaseTarget:
    return guard_runs.prepare_targets(
        [release] if release else [], only_ready=True, toggle_folders=request.toggles
    )[0]


def compare_releases(request: ZooRequest, arguments: argparse.Namespace) -> int:
    """Show what changed since a release; 1 if something became worse or was not compared."""
    targets = [prepare_target(request, release) for release in (request.since, request.release)]
    if targets[0].name == targets[1].name:
        raise UnfixError(
            f"--since {request.since} is SGLang {targets[1].name}, the release that is compared: "
            "name another"
        )
    runs = []
    for target in targets:
        run = find_stored_run(target, request)
        if run is None:
            run = execute_zoo(target, request)
            if run.status is not RunStatus.FINISHED:
                return 130
        runs.append(run)
    before, after = runs
    changes = release_changes.compare_runs(before, after, request.names)
    is_red = changes.is_worse or changes.is_incomplete
    show_changes(changes, is_red, arguments)
    return int(is_red)


def show_changes(changes: ZooChanges, is_red: bool, arguments: argparse.Namespace) -> None:
    from reports.zoo import changes as reports

    data = msgspec.to_builtins(changes)
    run_output.write_outputs(
        arguments,
        run_output.get_default_page("zoo-since"),
        lambda: reports.render_page(changes, machine.describe_commit()),
        lambda: reports.render_markdown(changes),
        data,
        is_red=is_red,
    )
    if arguments.json:
        options.print_json(data)
    else:
        reports.print_changes(changes, options.make_console())


def find_stored_run(target: ReleaseTarget, request: ZooRequest) -> ZooRun | None:
    """Find the newest whole run that is as one of today would be and has these rows.

    It is of the same release, versions, card and code of ours, without toggles.
    """
    code = digest_work(target, request)
    if not code:
        return None
    versions = machine.collect_machine_facts(str(target.python))["versions"]
    alike = target.name, request.card, code, versions
    architectures, families = select_rows(request.names)
    rows = {*(architecture.name for architecture in architectures), *families}
    table = ZooTable(Store())
    for run in reversed(table.list_runs()):
        is_alike = (run.release, run.card, run.code, run.versions) == alike
        if (
            is_alike
            and not run.toggles
            and not run.ranks
            and run.status is RunStatus.FINISHED
            and rows <= set(run.planned)
        ):
            return table.load_whole(run)
    return None


def digest_work(target: ReleaseTarget, request: ZooRequest) -> str:
    """Digest the code and the settings of a run; '' if the release itself may change."""
    code = guard_runs.digest_lane_code(target, request.toggles)
    layout = str(request.layout), request.sum_order
    settings = str(request.seconds), *layout, request.features, *request.check
    return compute_digest(code, *settings) if code else ""


def execute_zoo(target: ReleaseTarget, request: ZooRequest) -> ZooRun:
    """Run a request on a release, to the end or until Ctrl-C; return the stored run."""
    architectures, families = select_rows(request.names)
    if request.layout.count > 1:
        if set(request.names) & set(families):
            raise UnfixError("kernel families run on one rank: name architectures")
        families = []
    get_card(request.card)  # an unknown name ends the call
    run_id, started = guard_runs.make_id_and_start()
    mended = [f.page for f in load_findings() if f.fix.toggle in request.enable]

    def make_work(folder: Path) -> ZooWorkerRequest:
        return ZooWorkerRequest(
            card=request.card,
            folder=str(folder),
            jobs=guard_runs.choose_job_count("cpu", request.jobs),
            seconds=request.seconds,
            architectures=[each.drop_known_failures(mended) for each in architectures],
            families=families,
            check=request.check,
            layout=request.layout,
            sum_order=request.sum_order,
            features=request.features,
            mended=mended,
        )

    run = ZooRun(
        id=run_id,
        started=started,
        release=target.name,
        card=request.card,
        ranks=str(request.layout),
        command=run_output.get_recorded_command(),
        code=digest_work(target, request),
        planned=[*(architecture.name for architecture in architectures), *families],
    )
    worker = "harness.runs.zoo.zoo_worker", request, make_work
    execute_in_lanes(run, target, *worker, ZooTable(Store()), "rows", list_failures)
    return run


def list_failures(result: ArchitectureResult) -> list[str]:
    failures = [f"{claim.claim}: {claim.headline}" for claim in result.failures]
    return [*failures, *result.feature_problems]
