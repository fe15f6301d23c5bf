"""What `unfix fuzz` asks for, and what it shows: a run, a replay, a regression."""

from __future__ import annotations

import argparse
import datetime
import math
import random
import secrets
from typing import TypeVar

import msgspec

from harness.cli import guard_runs, options, run_output
from harness.cli.fuzz.progress import FuzzProgress
from harness.cli.process_cleanup import end_processes_on_exit
from harness.core import machine
from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.patching import bootstrap
from harness.runs.fuzz import failure_files
from harness.runs.fuzz.messages import FuzzResult, ToggleDirections
from harness.runs.fuzz.release_search import FuzzRequest
from harness.runs.fuzz.runner import FuzzDriver
from harness.store.database import Store
from harness.store.fuzz.values import FuzzedTest, FuzzFailure, FuzzRun
from harness.workers.release_target import ReleaseTarget
from reports.fuzz import terminal

Number = TypeVar("Number", int, float)
REPLAY_SECONDS = 300.0  # seconds for an example that is replayed


def run_fuzz(arguments: argparse.Namespace) -> int:
    if arguments.words:
        raise UnfixError("`unfix fuzz` takes nothing behind `--`: name suites, paths or tests")
    if arguments.replay is not None and arguments.keep is not None:
        raise UnfixError("--replay runs a failure again, --keep keeps it: say one of them")
    arguments.toggles = [folder.resolve() for folder in arguments.toggles]
    if arguments.keep is not None:
        return _keep_failure(arguments)
    if arguments.replay is not None:
        return _replay_failure(arguments)
    asked = _make_request(arguments)
    return _run_until_stopped(asked, arguments)


def _make_request(arguments: argparse.Namespace) -> FuzzRequest:
    seconds = options.parse_budget(arguments.budget, "--for")
    words, place = guard_runs.resolve_suites(arguments.suites)
    targets = guard_runs.prepare_targets(arguments.release, arguments.device, only_ready=True)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    jobs = (
        guard_runs.choose_job_count(arguments.device) if arguments.jobs is None else arguments.jobs
    )
    return FuzzRequest(
        targets=targets,
        pytest_arguments=words,
        pytest_folder=place,
        under=choose_toggles(arguments, targets),
        seconds=seconds,
        jobs=_check_positive(jobs, "-j"),
        seed=seed,
        memory=_choose_memory(arguments, jobs),
        example_seconds=_check_positive(arguments.limit, "--limit"),
        toggle_folders=arguments.toggles,
    )


def _check_positive(number: Number, name: str) -> Number:
    if not 0 < number < math.inf:
        raise UnfixError(f"{name} is a positive number, and not {number}")
    return number


def _choose_memory(arguments: argparse.Namespace, jobs: int) -> int:
    if arguments.memory is None:
        return guard_runs.choose_memory_limit(jobs)
    return int(_check_positive(arguments.memory, "--memory") * 2**30)


def choose_toggles(arguments: argparse.Namespace, targets: list[ReleaseTarget]) -> ToggleDirections:
    """The toggles that are put in, on every release."""
    known = options.load_catalogue(arguments)
    found: dict[str, str] = {}
    for direction, wanted in (("revert", ToggleState.FIXED), ("enable", ToggleState.BUGGY)):
        names = [
            name for word in getattr(arguments, direction) for name in bootstrap.split_ids(word)
        ]
        for toggle in known.select_all(names) if names else []:
            for target in targets:
                state = find_toggle_status(toggle, target.sources).state
                if state is not wanted:
                    raise UnfixError(
                        f"{toggle.id} is {state.value} on SGLang {target.name}: "
                        f"--{direction} takes one that is {wanted.value}"
                    )
            if found.setdefault(toggle.id, direction) != direction:
                raise UnfixError(f"{toggle.id} cannot be reverted and enabled at once")
    return sorted(found.items())


def _run_until_stopped(request: FuzzRequest, arguments: argparse.Namespace) -> int:
    """Fuzz; whoever stops it loses nothing of what was found."""

    stopped = False
    stored, store = _make_stored_run(request), Store()

    def keep() -> None:
        store.fuzz.save(_make_snapshot(stored, going.result))

    with FuzzProgress(request, keep) as progress:
        going = FuzzDriver(request, progress)
        keep()
        try:
            with end_processes_on_exit():
                going.run_to_end()
        except KeyboardInterrupt:
            stopped = True
        finally:
            keep()
            store.close()
    if arguments.json:
        options.print_json(msgspec.to_builtins(going.result))
    else:
        terminal.print_run(going.result, options.make_console())
    if stopped:
        options.report_status("stopped; what was found is kept")
        return 130
    return 1 if going.result.failures or going.result.problems else 0


def _make_stored_run(request: FuzzRequest) -> FuzzRun:
    now = datetime.datetime.now(datetime.UTC)
    return FuzzRun(
        id=f"fuzz-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        started=now.isoformat(timespec="seconds"),
        command=run_output.get_recorded_command(),
        commit=machine.describe_commit(),
        under=request.under,
    )


def _make_snapshot(stored: FuzzRun, run: FuzzResult) -> FuzzRun:
    """What the store keeps of a run: the failures with all that runs them again."""
    return msgspec.structs.replace(
        stored,
        status=run.status,
        seconds=run.seconds,
        tests=[
            FuzzedTest(one.test, one.release, one.examples, one.seconds, one.left_out)
            for one in run.tests
        ],
        failures=[
            FuzzFailure(
                kept.name,
                kept.repro.test,
                kept.repro.release,
                kept.repro.headline,
                failure_files.format_failure(kept.repro),
            )
            for kept in run.failures
        ],
        problems=list(run.problems),
    )


def _replay_failure(arguments: argparse.Namespace) -> int:
    from harness.runs.fuzz import failure_replay

    failure = failure_files.read_failure(arguments.replay)
    failure_files.locate_test_file(failure)
    targets = guard_runs.prepare_targets(arguments.release or [failure.release], only_ready=True)
    words, place = guard_runs.resolve_suites([failure.test])
    done = [
        failure_replay.replay_failure(
            failure,
            FuzzRequest(
                targets=[target],
                pytest_arguments=words,
                pytest_folder=place,
                under=failure.under,
                seconds=REPLAY_SECONDS,
                jobs=1,
                seed=failure.seed,
                memory=_choose_memory(arguments, 1),
                example_seconds=_check_positive(arguments.limit, "--limit"),
                toggle_folders=arguments.toggles,
            ),
        )
        for target in targets
    ]
    if arguments.json:
        options.print_json(msgspec.to_builtins(done))
    else:
        terminal.print_replays(done, options.make_console())
    return 1 if any(one.fails for one in done) else 0


def _keep_failure(arguments: argparse.Namespace) -> int:
    kept = failure_files.keep_regression(arguments.keep)
    if arguments.json:
        options.print_json({"kept": str(kept)})
    else:
        options.make_console().print(
            f"{failure_files.shorten_path(kept)}: its suite runs it from now on"
        )
    return 0
