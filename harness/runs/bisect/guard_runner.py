"""The runner of a guard: one process imports the release, and each run is a fork of it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import shlex
import shutil
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError
from harness.core.outcomes import Outcome, Verdict
from harness.runs.bisect.command_runner import MAX_OUTPUT_KEPT
from harness.runs.bisect.outcome_rules import OutcomeRules
from harness.runs.bisect.trial_runner import ToggleChoices, TrialJob, VersionUnderTest
from harness.store.bisect.values import BisectTrial
from harness.store.prove.values import BUG_OUTCOMES, SideResult
from harness.workers.engine import Assignment, Engine
from harness.workers.guard_pool import GuardPool
from harness.workers.messages import (
    GuardsCollected,
    GuardWorkerMessage,
    GuardWorkerSettings,
    LiveToggleProblems,
    LiveToggleQuery,
    TaskKey,
    TestRequest,
)

MAX_LIVE_WORKERS = 3  # releases whose process stays alive


def find_guard_node(command: list[str]) -> str | None:
    """Return the node of the guard that a one-word command names, or None."""
    if len(command) != 1:
        return None
    file, colons, node = command[0].partition("::")
    if colons and Path(file).suffix == ".py":
        place = next((p for p in (Path(file), paths.project_folder() / file) if p.is_file()), None)
        if place is None:
            raise UnfixError(f"there is no file {file}")
        return f"{place.resolve()}::{node}"
    bare = command[0].partition("[")[0]
    if not bare.startswith("test_") or not bare.isidentifier():
        return None
    found = [
        f"{path}::{command[0]}"
        for path in sorted((paths.project_folder() / "suites").rglob("test_*.py"))
        if bare in _list_function_names(path)
    ]
    if len(found) > 1:
        named = "\n  ".join(str(one) for one in found)
        raise UnfixError(f"{len(found)} guards are called {bare}; name one of:\n  {named}")
    if not found and shutil.which(command[0]) is None:
        raise UnfixError(_describe_unknown_guard(bare))
    return found[0] if found else None


def _describe_unknown_guard(name: str) -> str:
    suites = sorted((paths.project_folder() / "suites").rglob("test_*.py"))
    known = sorted({each for path in suites for each in _list_function_names(path)})
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; near it: {', '.join(near)}" if near else ""
    return f"there is no command '{name}', and no guard of that name{hint}"


def _list_function_names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@dataclass(eq=False)
class _JobTests:
    """A job with the results of its tests so far: one guard may have several parameters."""

    batch_index: int
    job: TrialJob
    test_count: int = 0
    sides: list[SideResult] = field(default_factory=list)


@dataclass(frozen=True)
class _TestRun:
    """One test of a job. Without a test, it asks which of the job's toggles can be applied live."""

    tests: _JobTests
    key: TaskKey | None = None


class _VersionPool(GuardPool[_TestRun]):
    """The tests of the guard on one version of SGLang."""

    def __init__(self, runner: GuardRunner, version: VersionUnderTest) -> None:
        file = Path(runner.node.partition("::")[0])
        is_ours = file.is_relative_to(paths.project_folder())
        super().__init__(
            version.name,
            version.python,
            runner.folder / version.name,
            paths.project_folder() if is_ours else file.parent,
            jobs=runner.jobs,
            time_limit=runner.time_limit,
            memory_limit=runner.memory_limit,
            toggle_folders=runner.toggle_folders,
        )
        self.waiting_tests: deque[_JobTests] = deque()
        self.ended_jobs: deque[_JobTests] = deque()
        self.unfit_toggles: dict[str, str] = {}  # the answer to the last question
        self._runner = runner

    def make_settings(self, folder: str) -> GuardWorkerSettings:
        return GuardWorkerSettings(
            release=self.name,
            pytest_arguments=["--profile", self._runner.profile, self._runner.node],
            sides=[],
            toggle_ids=[],
            folder=folder,
            device=self._runner.device,
        )

    def plan_items(self, collected: GuardsCollected) -> None:
        if collected.problems or not collected.tasks:
            why = "\n".join(collected.problems) or "it collects no test that guards anything"
            self.give_up(f"{self._runner.node} cannot be run: {why}", is_usage_error=True)

    def refill(self) -> None:
        """Add the tests of the next job."""
        if self.waiting_tests:
            tests = self.waiting_tests.popleft()
            keys = list(filter(self._runner.is_selected, self.task_keys))
            tests.test_count = len(keys)
            self.waiting.extend(_TestRun(tests, key) for key in keys)

    def send_item(self, assignment: Assignment[_TestRun]) -> None:
        if assignment.item.key is not None:
            super().send_item(assignment)
            return
        choices = assignment.item.tests.job.choices
        query = LiveToggleQuery([(name, way.value) for name, way in choices])
        assignment.worker.send_request(query)

    def make_request(self, item: _TestRun) -> tuple[TaskKey, TestRequest]:
        assert item.key is not None
        directions = [(name, way.value) for name, way in item.tests.job.choices]
        return item.key, TestRequest(toggle_directions=directions)

    def handle_message(self, worker: Any, message: GuardWorkerMessage) -> None:
        if isinstance(message, LiveToggleProblems):
            self.finish(next(iter(self.running)))  # nothing else runs while it is asked
            self.unfit_toggles = message.reasons
        else:
            super().handle_message(worker, message)

    def finish_pool(self) -> None:
        self._runner.end_old_workers()

    def record_side(self, assignment: Assignment[_TestRun], side: SideResult) -> None:
        tests = assignment.item.tests
        if assignment.item.key is None:
            raise NotReadyError(f"SGLang {self.name} ended: {side.headline}\n{side.detail}")
        tests.sides.append(side)
        if len(tests.sides) == tests.test_count:
            self.ended_jobs.append(tests)


class GuardRunner:
    """Runs a guard on some releases, each run in a fork of the release's process."""

    def __init__(
        self,
        node: str,
        rules: OutcomeRules,
        folder: Path,
        *,
        jobs: int,
        time_limit: float,
        memory_limit: int,
        device: str,
        profile: str,
        toggle_folders: list[Path],
    ) -> None:
        self.node = node
        self.rules = rules
        self.folder = folder
        self.jobs = jobs if device == "cpu" else 1
        self.is_deterministic = device == "cpu"  # a seed decides every example there
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self.device = device
        self.profile = profile
        self.toggle_folders = toggle_folders
        self.selected_test = ""  # one test of the node; empty: all of them
        self._pools: dict[VersionUnderTest, _VersionPool] = {}  # the last used one comes last

    def find_unfit_toggles(
        self, version: VersionUnderTest, choices: ToggleChoices
    ) -> dict[str, str]:
        """Find the toggles that cannot be applied in a running process, with the reasons."""
        pool = self._open_pool(version)
        pool.waiting.append(_TestRun(_JobTests(0, TrialJob(version, (), choices, ""))))
        Engine([pool], jobs=1).run()
        return pool.unfit_toggles

    def run(self, batch: list[TrialJob]) -> Iterator[tuple[int, BisectTrial]]:
        pools = list(dict.fromkeys(self._open_pool(job.version) for job in batch))
        for index, job in enumerate(batch):
            self._pools[job.version].waiting_tests.append(_JobTests(index, job))
        try:
            for _ in Engine(pools, self.jobs).iterate_turns():
                for pool in pools:
                    while pool.ended_jobs:
                        ended = pool.ended_jobs.popleft()
                        yield ended.batch_index, self._make_trial(ended)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for pool in self._pools.values():
            pool.end_workers()
        self._pools.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _open_pool(self, version: VersionUnderTest) -> _VersionPool:
        """Return the pool of a release, which may have a living worker."""
        pool = self._pools.pop(version, None) or _VersionPool(self, version)
        self._pools[version] = pool
        pool.has_ended = False
        return pool

    def end_old_workers(self) -> None:
        """End the workers that were not used lately; a few stay alive: imports take longest."""
        ended = [version for version, pool in self._pools.items() if pool.has_ended]
        for version in ended[: max(0, len(self._pools) - MAX_LIVE_WORKERS)]:
            self._pools.pop(version).end_workers()

    # Results

    def is_selected(self, test_key: TaskKey) -> bool:
        return (
            not self.selected_test
            or test_key[1] == self.selected_test
            or test_key[1].startswith(f"{self.selected_test}[")
        )

    def _make_trial(self, tests: _JobTests) -> BisectTrial:
        """Join the results of all parameters; ignore those that do not apply on the release."""
        applied = [side for side in tests.sides if side.outcome is not Outcome.NA]
        by_answer: dict[Verdict, tuple[str, SideResult]] = {}
        for each in applied or tests.sides:
            answer, how = self._judge_side(each)
            by_answer[answer] = how, each
        answer = next(
            a for a in (Verdict.FAILS, Verdict.CANNOT_TELL, Verdict.PASSES) if a in by_answer
        )
        how, side = by_answer[answer]
        ran: dict[str, int] = {}
        for each in tests.sides:
            for name, count in each.ran.items():
                ran[name] = ran.get(name, 0) + count
        known = not any(each.outcome is Outcome.LOST for each in tests.sides)
        return tests.job.make_trial(
            answer,
            how,
            sum(each.seconds + each.overhead for each in tests.sides),
            reach_by_toggle=ran if known and tests.job.choices else None,
            output="\n".join([*side.example, side.detail])[-MAX_OUTPUT_KEPT:].strip(),
            replay=self._build_replay_command(tests.job),
        )

    def _judge_side(self, side: SideResult) -> tuple[Verdict, str]:
        if side.outcome is Outcome.PASSED:
            return Verdict.PASSES, "passed"
        words = f"{side.outcome.value}: {side.headline}".strip(": ")
        if side.outcome not in BUG_OUTCOMES:
            # Another exception, a hang or a lack of memory is inconclusive.
            return Verdict.CANNOT_TELL, words
        return self.rules.apply_symptom(Verdict.FAILS, words, f"{side.headline}\n{side.detail}")

    def _build_replay_command(self, job: TrialJob) -> str:
        words = ["./unfix", "exec", "--release", job.version.name]
        for name, direction in job.choices:
            words += [f"--{direction.value}", name]
        words += [word for folder in self.toggle_folders for word in ("--toggles", str(folder))]
        node = self.node
        with contextlib.suppress(ValueError):
            file, _, rest = node.partition("::")
            node = f"{Path(file).relative_to(paths.project_folder())}::{rest}"
        pytest = ["python", "-m", "pytest", "--profile", self.profile, node]
        pytest += ["--device", self.device] if self.device != "cpu" else []
        return shlex.join([*words, "--", *pytest])
