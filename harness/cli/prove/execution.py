"""The execution of `prove` or `lifecycle`, from the call to the end."""

from __future__ import annotations

import contextlib

from harness.cli import guard_runs, options, run_output
from harness.cli.process_cleanup import end_processes_on_exit
from harness.cli.prove import request as requests
from harness.cli.prove.call import RESUMED_SETTINGS, ProveCall
from harness.cli.prove.progress import ProveProgress
from harness.core import machine
from harness.core.errors import NotReadyError, UnfixError
from harness.core.wording import format_duration
from harness.fixes.registry import toggle_catalogue
from harness.runs.prove import time_estimate
from harness.runs.prove.plan import ProveRequest
from harness.runs.prove.runner import execute_proof
from harness.store.database import Store
from harness.store.prove.table import ProveTable
from harness.store.prove.values import ProveRun
from harness.workers.release_target import ReleaseTarget


def run_proof(call: ProveCall, targets: list[ReleaseTarget] | None = None) -> ProveRun:
    """Run a proof to its end, or until Ctrl-C; return the stored run."""
    store = Store()
    call, earlier = requests.resolve_call(call, store)
    request = requests.make_request(call, earlier, store, targets)
    if call.resume is not None and earlier is not None:
        run = earlier
        run.releases = []
    else:
        run = _make_run(call, request)
    _report_expected_time(request, run, store)
    with (
        contextlib.suppress(KeyboardInterrupt),
        end_processes_on_exit(),
        ProveProgress(request) as progress,
    ):
        execute_proof(request, run, ProveTable(store), progress)
    return ProveTable(store).get(run.id)


def find_start_error(run: ProveRun) -> int:
    """Return the exit code of a run without results, as pytest or no release started; else 0."""
    problems = [problem for facts in run.releases for problem in facts.problems]
    if run.cells or not problems:
        return 0
    if any("USAGE_ERROR" in problem for problem in problems):
        return UnfixError.exit_code
    has_started = any(facts.seconds_to_start for facts in run.releases)
    return 0 if has_started else NotReadyError.exit_code


def _make_run(call: ProveCall, request: ProveRequest) -> ProveRun:
    settings = {name: getattr(call, name) for name in RESUMED_SETTINGS}
    settings["seed"] = request.seed
    settings["code"] = requests.digest_inputs(call)
    settings["sources"] = requests.digest_sources(request.targets)
    settings["commit"] = machine.describe_commit()
    settings["jobs"] = request.jobs
    settings["toggles"] = list(map(str, call.toggles))
    settings["mended"] = [path.stem for path in toggle_catalogue.list_mended_files()]
    run_id, started = guard_runs.make_id_and_start()
    return ProveRun(
        id=run_id,
        kind=call.command,
        started=started,
        command=run_output.get_recorded_command(),
        settings=settings,
        toggles=[guard_runs.make_toggle_facts(toggle) for toggle in request.toggles],
    )


def _report_expected_time(request: ProveRequest, new_run: ProveRun, store: Store) -> None:
    earlier = [
        run
        for run in ProveTable(store).list_runs()
        if run.kind == new_run.kind and run.id != new_run.id
    ]
    newest_first = reversed(earlier[-time_estimate.MAX_RUNS_READ :])
    seconds = time_estimate.estimate_run_seconds(
        request, new_run, map(ProveTable(store).load_whole, newest_first)
    )
    if seconds is not None:
        options.report_status(f"about {format_duration(seconds)}, by earlier runs on this machine")
