"""The execution of `unfix fuzz`: a run, a replay of a failure, or a new regression."""

from __future__ import annotations

import argparse
import contextlib
import random
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.cli import guard_runs, options, run_output
from harness.cli.commands import KINDS
from harness.cli.fuzz.progress import FuzzProgress
from harness.cli.process_cleanup import end_processes_on_exit
from harness.core import machine
from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.registry import toggle_catalogue
from harness.runs.fuzz import failure_files, failure_replay
from harness.runs.fuzz.release_search import FuzzRequest
from harness.runs.fuzz.runner import FuzzDriver
from harness.store.database import Store
from harness.store.fuzz.table import FuzzTable
from harness.store.fuzz.values import FuzzRun, ToggleDirections
from harness.workers.release_target import ReleaseTarget
from reports.fuzz import terminal

REPLAY_SECONDS = 300.0  # the limit of a replayed example


@dataclass(frozen=True)
class FuzzCall:
    """The words and options of a call."""

    suites: list[str]
    words: list[str]  # words behind `--`, which are an error
    release: list[str]
    device: str
    revert: list[str]
    enable: list[str]
    budget: str
    jobs: int | None
    seed: int | None
    limit: float
    memory: float | None
    replay: Path | None
    keep: Path | None
    toggles: list[Path]
    json: bool


def run_fuzz(call: FuzzCall, arguments: argparse.Namespace) -> int:
    if call.words:
        raise UnfixError("`unfix fuzz` takes nothing behind `--`: name suites, paths or tests")
    if call.replay is not None and call.keep is not None:
        raise UnfixError(
            "--replay runs a failure again, --keep makes it a regression: give one of them"
        )
    if call.keep is not None:
        return _keep_failure(call.keep, call.json)
    if call.replay is not None:
        return _replay_failure(call.replay, call)
    return _run_until_stopped(_make_request(call), arguments)


def _make_request(call: FuzzCall) -> FuzzRequest:
    seconds = options.parse_budget(call.budget, "--for")
    pytest_arguments, folder = guard_runs.resolve_suites(call.suites)
    guard_runs.report_suites(call.suites)
    targets = guard_runs.prepare_targets(
        call.release, call.device, only_ready=True, toggle_folders=call.toggles
    )
    jobs = guard_runs.choose_job_count(call.device, call.jobs)
    return FuzzRequest(
        targets=targets,
        pytest_arguments=pytest_arguments,
        pytest_folder=folder,
        under=choose_toggles(call, targets),
        seconds=seconds,
        jobs=jobs,
        seed=random.SystemRandom().randrange(2**32) if call.seed is None else call.seed,
        memory=guard_runs.choose_memory_limit(jobs, call.memory),
        example_seconds=guard_runs.check_positive(call.limit, "--limit"),
        toggle_folders=_resolve_toggle_folders(call),
    )


def _resolve_toggle_folders(call: FuzzCall) -> list[Path]:
    return [folder.resolve() for folder in call.toggles]


def choose_toggles(call: FuzzCall, targets: list[ReleaseTarget]) -> ToggleDirections:
    """Choose the toggles to revert or enable, on every release."""
    catalogue = toggle_catalogue.load_catalogue(call.toggles)
    directions: dict[str, str] = {}
    for direction, names, required in (
        ("revert", call.revert, ToggleState.FIXED),
        ("enable", call.enable, ToggleState.BUGGY),
    ):
        for toggle in catalogue.select_all(names) if names else []:
            for target in targets:
                state = find_toggle_status(toggle, target.sources).state
                if state is not required:
                    raise UnfixError(
                        f"{toggle.id} is {state.value} on SGLang {target.name}: "
                        f"--{direction} takes one that is {required.value}"
                    )
            if directions.setdefault(toggle.id, direction) != direction:
                raise UnfixError(f"{toggle.id} cannot be reverted and enabled at once")
    return sorted(directions.items())


def _run_until_stopped(request: FuzzRequest, arguments: argparse.Namespace) -> int:
    """Fuzz for the budget or until Ctrl-C. Each result is stored either way."""
    run_id, started = guard_runs.make_id_and_start("fuzz-")
    run, store = (
        FuzzRun(
            id=run_id,
            started=started,
            seed=request.seed,
            budget=request.seconds,
            under=request.under,
            device=request.targets[0].device,
            command=run_output.get_recorded_command(),
            commit=machine.describe_commit(),
        ),
        Store(),
    )

    def save_run() -> None:
        FuzzTable(store).save(run)

    with FuzzProgress(save_run) as progress:
        save_run()
        try:
            with contextlib.suppress(KeyboardInterrupt), end_processes_on_exit():
                FuzzDriver(request, run, progress).run_to_end()
        finally:
            save_run()
            store.close()
    return run_output.finish_run(KINDS["fuzz"], run, arguments, "its failures are stored")


def _replay_failure(file: Path, call: FuzzCall) -> int:
    failure = failure_files.read_failure(file)
    failure_files.locate_test_file(failure)
    targets = guard_runs.prepare_targets(call.release or [failure.release], only_ready=True)
    pytest_arguments, folder = guard_runs.resolve_suites([failure.test])
    replays = [
        failure_replay.replay_failure(
            failure,
            FuzzRequest(
                targets=[target],
                pytest_arguments=pytest_arguments,
                pytest_folder=folder,
                under=failure.under,
                seconds=REPLAY_SECONDS,
                jobs=1,
                seed=failure.seed,
                memory=guard_runs.choose_memory_limit(1, call.memory),
                example_seconds=guard_runs.check_positive(call.limit, "--limit"),
                toggle_folders=_resolve_toggle_folders(call),
            ),
        )
        for target in targets
    ]
    if call.json:
        options.print_json(msgspec.to_builtins(replays))
    else:
        terminal.print_replays(replays, options.make_console())
    return 1 if any(replay.fails for replay in replays) else 0


def _keep_failure(file: Path, as_json: bool) -> int:
    regression = failure_files.keep_regression(file)
    if as_json:
        options.print_json({"kept": str(regression)})
    else:
        options.make_console().print(
            f"{failure_files.shorten_path(regression)}: its suite runs it from now on"
        )
    return 0
