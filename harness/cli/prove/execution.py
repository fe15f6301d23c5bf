"""What `prove` and `lifecycle` share: their options, a run, and what is shown of it."""

from __future__ import annotations

import argparse
import datetime
import math
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import guard_runs, options, resumption, run_kinds, run_output
from harness.cli.command_parser import CommandParser
from harness.core import machine
from harness.core.errors import NotReadyError, UnfixError
from harness.core.wording import format_duration

if TYPE_CHECKING:
    from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
    from harness.runs.prove.plan import ProveRequest
    from harness.store.database import Store
    from harness.store.prove.values import ProveRun


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
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    parser.add_argument("--profile", choices=("smoke", "default", "nightly"), default="default")
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="tests at a time")
    parser.add_argument("-k", metavar="EXPRESSION", help="only guards that pytest selects by it")
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="S", help="seconds for a test on one side"
    )
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory for a test")
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="one part of the cells")
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


def run_proof(arguments: argparse.Namespace, kind: str) -> int:
    from harness.store.database import Store

    store = Store()
    catalogue = options.load_catalogue(arguments)
    arguments.names, guards = options.split_names_and_paths(
        arguments.names, arguments.usage, catalogue
    )
    arguments.words = _resolve_guard_paths([*guards, *arguments.words])
    arguments.device = _resolve_device(arguments.device)
    earlier = _find_earlier_run(arguments, kind, store)
    if earlier is not None:
        _restore_settings(arguments, earlier)
        catalogue = options.load_catalogue(arguments)
    asked = _make_request(arguments, kind, earlier, catalogue, store.prove.load_average_seconds())
    if arguments.resume is not None and earlier is not None:
        new = earlier
        new.releases = []
    else:
        new = _make_run(arguments, kind, asked)
    _report_expected_time(asked, new, store)
    stopped = _run_until_stopped(asked, new, store)
    done = store.prove.get(new.id)
    code = run_output.write_and_print_run(run_kinds.PROVE, [done], arguments)
    if stopped:
        options.report_status(f"stopped; what is done is kept: `unfix {kind} --resume` goes on")
        return 130
    if not done.cells:
        said = [problem for on in done.releases for problem in on.problems]
        if any("USAGE_ERROR" in problem for problem in said):
            return UnfixError.exit_code
        if said and not any(on.seconds_to_start for on in done.releases):
            return NotReadyError.exit_code
    return code


def _report_expected_time(request: ProveRequest, new_run: ProveRun, store: Store) -> None:
    from harness.runs.prove import time_estimate

    earlier = [
        run for run in store.prove.list_runs() if run.kind == new_run.kind and run.id != new_run.id
    ]
    whole = (
        store.prove.load_whole(run) for run in reversed(earlier[-time_estimate.MAX_RUNS_READ :])
    )
    seconds = time_estimate.estimate_run_seconds(request, new_run, whole)
    if seconds is None:
        options.report_status("no earlier run like this one is here to tell how long it takes")
    else:
        options.report_status(f"about {format_duration(seconds)}, from what earlier runs here took")


def _find_earlier_run(arguments: argparse.Namespace, kind: str, store: Store) -> ProveRun | None:
    """The run that this one goes on with or repeats in part."""
    if arguments.resume is not None and arguments.failed is not None:
        raise UnfixError("--resume goes on with a run, --failed makes a new one: say one of them")
    if arguments.resume is not None:
        runs = [run for run in store.prove.list_runs() if arguments.resume or run.kind == kind]
        found = store.prove.load_whole(resumption.find_stopped_run(runs, arguments.resume, "run"))
    elif arguments.failed is not None:
        found = store.prove.get(arguments.failed or store.prove.find_latest(kind).id)
        if found.status == "running":
            raise UnfixError(f"run {found.id} is still going on")
    else:
        return None
    if found.kind != kind:
        raise UnfixError(f"run {found.id} is one of `unfix {found.kind}`")
    return found


RESUMED_SETTINGS = (
    "names",
    "release",
    "device",
    "profile",
    "k",
    "shard",
    "words",
    "limit",
    "memory",
)


def _restore_settings(arguments: argparse.Namespace, earlier: ProveRun) -> None:
    """What was asked for then is asked for again, unless this call says something else."""
    unsaid = CommandParser()
    add_arguments(unsaid)
    defaults = vars(unsaid.parse_args([])) | {"words": []}
    for name in RESUMED_SETTINGS:
        if getattr(arguments, name) == defaults[name]:
            setattr(arguments, name, earlier.settings[name])
    arguments.toggles = arguments.toggles or [Path(p) for p in earlier.settings["toggles"]]
    if arguments.resume is not None:
        now = guard_runs.digest_guards_and_toggles(
            arguments.toggles, _list_guard_files(arguments.words)
        )
        resumption.refuse_if_changed(earlier.settings["code"], now, earlier.id, "guards or toggles")


def _list_guard_files(words: list[str]) -> list[Path]:
    return [Path(word.partition("::")[0]) for word in words]


def _make_request(
    arguments: argparse.Namespace,
    kind: str,
    earlier: ProveRun | None,
    catalogue: ToggleCatalogue,
    recorded_seconds: dict[tuple[str, str, str], float],
) -> ProveRequest:
    from harness.runs.prove import plan

    toggles = options.select_toggles_or_all(catalogue, arguments.names, arguments.usage)
    jobs = (
        guard_runs.choose_job_count(arguments.device) if arguments.jobs is None else arguments.jobs
    )
    memory = (
        guard_runs.choose_memory_limit(jobs)
        if arguments.memory is None
        else int(arguments.memory * 2**30)
    )
    if jobs < 1 or memory < 1 or not 0 < arguments.limit < math.inf:
        raise UnfixError("-j, --limit and --memory are positive numbers")
    try:
        shard = plan.parse_shard(arguments.shard)
    except ValueError as error:
        raise UnfixError(str(error)) from error
    resumed = arguments.resume is not None and earlier is not None
    failed = arguments.failed is not None and earlier is not None
    asked = plan.ProveRequest(
        kind=kind,
        targets=guard_runs.prepare_targets(arguments.release, arguments.device),
        toggles=toggles,
        has_named_toggles=bool(arguments.names),
        device=arguments.device,
        jobs=jobs,
        side_timeout=arguments.limit,
        memory_limit=memory,
        profile=arguments.profile,
        pytest_arguments=[*(["-k", arguments.k] if arguments.k else []), *arguments.words],
        toggle_folders=arguments.toggles,
        shard=shard,
        skipped_cells=plan.proven_cell_keys(earlier.cells) if failed and earlier else frozenset(),
        finished_cells={cell.key: cell for cell in earlier.cells} if resumed and earlier else {},
        known_seconds=recorded_seconds,
    )
    if failed and earlier and earlier.green:
        raise UnfixError("that run left nothing to prove")
    return asked


def _resolve_guard_paths(words: list[str]) -> list[str]:
    """Paths of guards are the caller's; workers have a folder of their own."""
    from harness.runs.prove.plan import is_guard_path

    found = []
    for index, word in enumerate(words):
        file, colons, node = word.partition("::")
        found.append(
            f"{Path(file).resolve()}{colons}{node}" if is_guard_path(words, index) else word
        )
    return found


def _resolve_device(requested: str) -> str:
    if requested == "auto":
        return "cuda" if shutil.which("nvidia-smi") else "cpu"
    return requested


def _make_run(arguments: argparse.Namespace, kind: str, request: ProveRequest) -> ProveRun:
    from harness.store.prove.values import ProveRun

    now = datetime.datetime.now(datetime.UTC)
    settings = {name: getattr(arguments, name) for name in RESUMED_SETTINGS}
    settings["code"] = guard_runs.digest_guards_and_toggles(
        arguments.toggles, _list_guard_files(arguments.words)
    )
    settings["commit"] = machine.describe_commit()
    settings["jobs"] = request.jobs
    settings["toggles"] = [str(folder.resolve()) for folder in arguments.toggles]
    return ProveRun(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        kind=kind,
        started=now.isoformat(timespec="seconds"),
        command=run_output.get_recorded_command(),
        settings=settings,
        toggles=[guard_runs.make_toggle_facts(toggle) for toggle in request.toggles],
    )


def _run_until_stopped(request: ProveRequest, new_run: ProveRun, store: Store) -> bool:
    """Run it; gives whether somebody stopped it."""
    from harness.cli.process_cleanup import end_processes_on_exit
    from harness.cli.prove.progress import ProveProgress
    from harness.runs.prove.runner import ProveRunner

    try:
        with end_processes_on_exit(), ProveProgress(request) as progress:
            ProveRunner(request, new_run, store.prove, progress).execute()
    except KeyboardInterrupt:
        return True
    return False
