"""Finds the guards of the suites that run a new toggle's code, and the guards that detect it.

Each guard runs once with all toggles flipped, which shows whose code it runs. A guard that runs a
toggle's code then runs with that toggle alone, and with none. Example: 200 guards and 2 toggles
with 5 guards each need at most 200 + 10 + 10 runs.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core import paths
from harness.core.errors import NotReadyError
from harness.core.outcomes import Outcome
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import FLIP_DIRECTIONS
from harness.fixes.registry.schema import Toggle
from harness.store.prove.values import BUG_OUTCOMES, SideResult
from harness.workers.engine import Assignment, Engine
from harness.workers.guard_pool import GuardPool
from harness.workers.messages import GuardsCollected, GuardWorkerSettings, TaskKey, TestRequest
from harness.workers.release_target import ReleaseTarget
from harness.workers.worker_process import ENGINE_TEST_FILE

GUARD_SECONDS = 60.0  # time limit of a guard on one side
GUARD_MEMORY = 4 << 30
ToggleDirections = tuple[tuple[str, str], ...]
ProgressListener = Callable[[str, int, int], None]  # what runs, how many have ended, of how many


@dataclass(frozen=True)
class DetectionReport:
    """The guards that run, and that detect, one toggle on one release."""

    release: str
    runs: tuple[str, ...]  # guards that run its code
    notices: tuple[str, ...]  # guards that fail without the fix, and pass with it
    asked: int
    left_out: int = 0  # guards that were not asked, for want of time


@dataclass(frozen=True)
class _GuardRun:
    task: TaskKey
    toggles: ToggleDirections


class _DetectionPool(GuardPool[_GuardRun]):
    """The guards of a release, each under some toggles."""

    def __init__(
        self,
        target: ReleaseTarget,
        suites: Path,
        toggle_folders: Sequence[Path],
        jobs: int,
        report: ProgressListener,
    ) -> None:
        paths.state_folder().mkdir(parents=True, exist_ok=True)
        super().__init__(
            target.name,
            target.python,
            Path(tempfile.mkdtemp(prefix="ask-", dir=paths.state_folder())) / target.name,
            suites.parent,
            jobs=jobs,
            time_limit=GUARD_SECONDS,
            memory_limit=GUARD_MEMORY,
            toggle_folders=toggle_folders,
        )
        self.tasks: list[TaskKey] = []
        self._suites, self._release = suites, target.requested_as or target.name
        self._engine = Engine([self], jobs)
        self._sides: dict[_GuardRun, SideResult] = {}
        self._next_runs: Iterator[_GuardRun] = iter(())
        self._report, self._deadline = report, float("inf")
        self._what, self._count = "", 0

    def make_settings(self, folder: str) -> GuardWorkerSettings:
        return GuardWorkerSettings(
            release=self._release,
            pytest_arguments=[
                *("--profile", "smoke", str(self._suites)),
                f"--ignore-glob=*/{ENGINE_TEST_FILE}",
            ],
            folder=folder,
            sides=[],
            toggle_ids=[],
        )

    def plan_items(self, collected: GuardsCollected) -> None:
        self.tasks = [task.key for task in collected.tasks]

    def make_request(self, item: _GuardRun) -> tuple[TaskKey, TestRequest]:
        return item.task, TestRequest(toggle_directions=list(item.toggles))

    def record_side(self, assignment: Assignment[_GuardRun], side: SideResult) -> None:
        self._sides[assignment.item] = side
        self._report(self._what, len(self._sides), self._count)

    def refill(self) -> None:
        """Begin another run, unless the time of the call is over."""
        if time.monotonic() < self._deadline and (run := next(self._next_runs, None)):
            self.waiting.append(run)

    def give_up(self, problem: str, log: str = "", is_usage_error: bool = False) -> None:
        raise NotReadyError(f"no suite can run on SGLang {self.name}: {problem}\n{log}".strip())

    def run_guards(
        self, runs: Iterable[_GuardRun], what: str, deadline: float = float("inf")
    ) -> dict[_GuardRun, SideResult]:
        """Run guards under toggles, once all are collected; none begins after the deadline."""
        wanted, self._deadline = list(runs), deadline
        self._next_runs, self._what, self._count = iter(wanted), what, len(wanted)
        self._sides, self.has_ended = {}, False
        self._engine.run()
        return self._sides


def find_detecting_guards(
    toggles: Sequence[Toggle],
    target: ReleaseTarget,
    suites: Path,
    folders: Sequence[Path],
    jobs: int,
    report: ProgressListener,
    seconds: float = float("inf"),
) -> dict[str, DetectionReport]:
    """Run all guards except those with servers, for every toggle whose code the release has.

    Guards of a toggle's family and of its modules run first; `seconds` after the
    import no other one begins.
    """
    states = {one.id: find_toggle_status(one, target.sources).state for one in toggles}
    flips = {
        name: FLIP_DIRECTIONS[state].value
        for name, state in states.items()
        if state in FLIP_DIRECTIONS
    }
    if not flips:
        return {}
    pool = _DetectionPool(target, suites, folders, jobs, report)
    try:
        report(f"SGLang {target.name}: importing", 0, 0)
        pool.run_guards((), "")
        deadline = time.monotonic() + seconds
        pool.tasks.sort(key=lambda task: _rank_guard(task[1], suites.parent, toggles))
        return _build_reports(pool, flips, states, deadline)
    finally:
        pool.end_workers()
        shutil.rmtree(pool.folder.parent, ignore_errors=True)


def _rank_guard(guard: str, root: Path, toggles: Sequence[Toggle]) -> tuple[int, str]:
    """Rank a guard by how near its suite is to toggles: of a family, of a module, or neither."""
    file = root / guard.partition("::")[0]
    if file.parent.name in {toggle.family for toggle in toggles}:
        return 0, guard
    targets = (target for toggle in toggles for one in toggle.variants for target in one.targets)
    modules = {target.module.rpartition(".")[2] for target in targets}
    text = _read_suite(file, root / "fixtures" / f"{file.parent.name}.py")
    return 2 - any(module in text for module in modules), guard


@functools.cache
def _read_suite(*files: Path) -> str:
    return "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())


def _build_reports(
    pool: _DetectionPool,
    flips: Mapping[str, str],
    states: Mapping[str, ToggleState],
    deadline: float,
) -> dict[str, DetectionReport]:
    every: ToggleDirections = tuple(flips.items())
    ran: dict[str, list[TaskKey]] = {name: [] for name in flips}
    flipped: dict[tuple[str, TaskKey], SideResult] = {}
    runs = [_GuardRun(task, every) for task in pool.tasks]
    asked = pool.run_guards(runs, f"guards on SGLang {pool.name}, toggled", deadline)
    for run, side in asked.items():
        for name in flips:
            if side.ran.get(name):
                ran[name].append(run.task)
                flipped[name, run.task] = side
    if len(every) > 1:
        alone = (
            _GuardRun(task, ((name, flips[name]),)) for name, tasks in ran.items() for task in tasks
        )
        for run, side in pool.run_guards(alone, "guards, one toggle at a time").items():
            ((name, _),) = run.toggles
            flipped[name, run.task] = side
    runners = sorted({task for tasks in ran.values() for task in tasks})
    sides = pool.run_guards((_GuardRun(task, ()) for task in runners), "guards without a toggle")
    as_is = {run.task: side for run, side in sides.items()}
    return {
        name: DetectionReport(
            pool.name,
            tuple(sorted(task[1] for task in tasks)),
            tuple(
                sorted(
                    task[1]
                    for task in tasks
                    if _is_detected(flipped[name, task], as_is[task], states[name])
                )
            ),
            len(asked),
            len(pool.tasks) - len(asked),
        )
        for name, tasks in ran.items()
    }


def _is_detected(flipped: SideResult, as_is: SideResult, state: ToggleState) -> bool:
    fixed, buggy = (as_is, flipped) if state is ToggleState.FIXED else (flipped, as_is)
    return fixed.outcome is Outcome.PASSED and buggy.outcome in BUG_OUTCOMES
