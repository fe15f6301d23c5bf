"""Finds the guards of the suites that run a new toggle's code, and the guards that detect it.

Each guard runs once with all toggles flipped, which shows whose code it runs. A guard that runs a
toggle's code then runs with that toggle alone, and with none. Example: 200 guards and 2 toggles
with 5 guards each need at most 200 + 10 + 10 runs.
"""

from __future__ import annotations

import select
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.core import paths
from harness.core.errors import NotReadyError
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import FLIP_DIRECTIONS
from harness.fixes.registry.schema import Toggle
from harness.store.prove.values import BUG_OUTCOMES, SideOutcome, SideResult
from harness.workers.messages import (
    GuardsCollected,
    GuardWorkerMessage,
    GuardWorkerSettings,
    StartFailure,
    TaskEnded,
    TaskKey,
)
from harness.workers.release_target import ReleaseTarget
from harness.workers.worker_process import ENGINE_TEST_FILE, START_TIMEOUT, GuardWorkerProcess

GUARD_SECONDS = 60.0  # time limit of a guard on one side
GUARD_MEMORY = 4 << 30
ToggleDirections = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DetectionReport:
    """The guards that run, and that detect, one toggle on one release."""

    release: str
    runs: tuple[str, ...]  # guards that run its code
    notices: tuple[str, ...]  # guards that fail without the fix, and pass with it
    asked: int


@dataclass
class _GuardRunner:
    worker: GuardWorkerProcess
    jobs: int
    tasks: list[TaskKey] = field(default_factory=list)

    def run_guards(
        self, requests: Iterable[tuple[TaskKey, ToggleDirections]]
    ) -> Iterator[tuple[TaskKey, ToggleDirections, SideResult]]:
        """Run guards under toggles, `jobs` at a time."""
        waiting, going = list(requests), dict[int, tuple[TaskKey, ToggleDirections]]()
        while waiting or going:
            while waiting and len(going) < self.jobs:
                task, under = waiting.pop(0)
                going[self.worker.request_test(task, GUARD_SECONDS, GUARD_MEMORY, under)] = (
                    task,
                    under,
                )
            for one in _read_messages(self.worker):
                if isinstance(one, TaskEnded):
                    self.worker.pop_task(one.serial)
                    yield *going.pop(one.serial), one.side


def find_detecting_guards(
    toggles: Sequence[Toggle],
    target: ReleaseTarget,
    suites: Path,
    folders: Sequence[Path],
    jobs: int,
    report: Callable[[str], None],
) -> dict[str, DetectionReport]:
    """Run all guards except those with servers, for every toggle whose code the release has."""
    states = {one.id: find_toggle_status(one, target.sources).state for one in toggles}
    flips = {
        name: FLIP_DIRECTIONS[state].value
        for name, state in states.items()
        if state in FLIP_DIRECTIONS
    }
    if not flips:
        return {}
    paths.state_folder().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ask-", dir=paths.state_folder()))
    words = ["--profile", "smoke", str(suites), f"--ignore-glob=*/{ENGINE_TEST_FILE}"]
    setting = GuardWorkerSettings(
        release=target.requested_as or target.name,
        pytest_arguments=words,
        folder=str(folder),
        sides=[],
        toggle_ids=[],
    )
    worker = GuardWorkerProcess(
        target.python, setting, list(folders), suites.parent, folder / "log"
    )
    try:
        guard_runner = _GuardRunner(worker, jobs, _wait_for_tasks(worker, target.name))
        report(f"running {len(guard_runner.tasks)} guards on SGLang {target.name}")
        return _build_reports(guard_runner, flips, states, target.name)
    finally:
        worker.end()
        shutil.rmtree(folder, ignore_errors=True)


def _build_reports(
    runner: _GuardRunner, flips: Mapping[str, str], states: Mapping[str, ToggleState], release: str
) -> dict[str, DetectionReport]:
    every: ToggleDirections = tuple(flips.items())
    ran: dict[str, list[TaskKey]] = {name: [] for name in flips}
    flipped: dict[tuple[str, TaskKey], SideResult] = {}
    for task, _, side in runner.run_guards((task, every) for task in runner.tasks):
        for name in flips:
            if side.ran.get(name):
                ran[name].append(task)
                flipped[name, task] = side
    if len(every) > 1:
        alone = ((task, ((name, flips[name]),)) for name, tasks in ran.items() for task in tasks)
        for task, ((name, _),), side in runner.run_guards(alone):
            flipped[name, task] = side
    runners = sorted({task for tasks in ran.values() for task in tasks})
    as_is = {task: side for task, _, side in runner.run_guards((task, ()) for task in runners)}
    return {
        name: DetectionReport(
            release,
            tuple(sorted(task[1] for task in tasks)),
            tuple(
                sorted(
                    task[1]
                    for task in tasks
                    if _is_detected(flipped[name, task], as_is[task], states[name])
                )
            ),
            len(runner.tasks),
        )
        for name, tasks in ran.items()
    }


def _is_detected(flipped: SideResult, as_is: SideResult, state: ToggleState) -> bool:
    fixed, buggy = (as_is, flipped) if state is ToggleState.FIXED else (flipped, as_is)
    return fixed.outcome is SideOutcome.PASSED and buggy.outcome in BUG_OUTCOMES


def _wait_for_tasks(worker: GuardWorkerProcess, release: str) -> list[TaskKey]:
    message = worker.wait_for_first_message(START_TIMEOUT)
    if isinstance(message, GuardsCollected):
        worker.accept_collected_tasks(message.tasks)
        return [task.key for task in message.tasks]
    if isinstance(message, StartFailure):
        raise NotReadyError(f"no suite can run on SGLang {release}: {message.problem}")
    raise NotReadyError(f"SGLang {release} did not start: {worker.read_log_tail()}")


def _read_messages(worker: GuardWorkerProcess) -> list[GuardWorkerMessage]:
    if not select.select([worker.read_end], [], [], 0.5)[0]:
        return []
    message = worker.receive_messages()
    if message is None:
        raise NotReadyError(f"the process that runs the suites is gone: {worker.read_log_tail()}")
    return message
