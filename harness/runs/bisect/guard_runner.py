"""The runner of a guard: one process imports the release, and each run is a fork of it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import select
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.core import paths, process_exit
from harness.core.errors import NotReadyError, UnfixError
from harness.runs.bisect.command_runner import MAX_OUTPUT_KEPT
from harness.runs.bisect.outcome_rules import OutcomeRules
from harness.runs.bisect.trial_runner import ToggleChoices, TrialJob, VersionUnderTest
from harness.store.bisect.values import BisectAnswer, BisectTrial
from harness.store.prove.values import BUG_OUTCOMES, SideOutcome, SideResult
from harness.workers.messages import (
    GuardsCollected,
    GuardWorkerSettings,
    LiveToggleProblems,
    LiveToggleQuery,
    StartFailure,
    TaskEnded,
    TaskKey,
)
from harness.workers.supervisor import make_exit_result
from harness.workers.worker_process import START_TIMEOUT, GuardWorkerProcess

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


@dataclass
class _PendingJob:
    """A job with the results of its tests so far: one guard may have several parameters."""

    batch_index: int
    job: TrialJob
    pending_tests: list[TaskKey] = field(default_factory=list)
    running_serials: set[int] = field(default_factory=set)  # serials of running tests
    sides: list[SideResult] = field(default_factory=list)


@dataclass(frozen=True)
class _LiveWorker:
    """The process of a release, and the tests that it collected."""

    worker: GuardWorkerProcess
    test_keys: list[TaskKey]


class GuardRunner:
    """Runs a guard on one release at a time, each run in a fork of one process."""

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
        self._live_workers: dict[VersionUnderTest, _LiveWorker] = {}  # the last used one comes last
        self._workers_started = 0

    def find_unfit_toggles(
        self, version: VersionUnderTest, choices: ToggleChoices
    ) -> dict[str, str]:
        """Find the toggles that cannot be applied in a running process, with the reasons."""
        worker = self._get_live_worker(version).worker
        worker.send_request(LiveToggleQuery([(name, way.value) for name, way in choices]))
        while (messages := worker.receive_messages()) is not None:
            for one in messages:
                if isinstance(one, LiveToggleProblems):
                    return one.reasons
        raise NotReadyError(f"SGLang {version.name} ended: {worker.read_log_tail()}")

    def run(self, batch: list[TrialJob]) -> Iterator[tuple[int, BisectTrial]]:
        waiting = list(enumerate(batch))
        going: dict[int, _PendingJob] = {}  # keys: serials of orders
        now: VersionUnderTest | None = None
        try:
            while waiting or going:
                while waiting and len({id(one) for one in going.values()}) < self.jobs:
                    place = waiting[0][1].version
                    if going and place != now:
                        break  # the runs of another release end first
                    now, living = place, self._get_live_worker(place)
                    one = _PendingJob(*waiting.pop(0))
                    one.pending_tests = list(filter(self._is_selected, living.test_keys))
                    self._dispatch_tests(one, going)
                assert now is not None
                for serial, side in self._collect_ended_sides(now, going):
                    one = going.pop(serial)
                    one.running_serials.discard(serial)
                    one.sides.append(side)
                    self._dispatch_tests(one, going)
                    if not one.running_serials:
                        yield one.batch_index, self._make_trial(one)
        except BaseException:
            self.close()
            raise

    def _dispatch_tests(
        self, pending_job: _PendingJob, jobs_by_serial: dict[int, _PendingJob]
    ) -> None:
        """Start a job's tests: all at once if each is a fork, else one after the other."""
        while pending_job.pending_tests and (
            self.is_deterministic or not pending_job.running_serials
        ):
            worker = self._get_live_worker(pending_job.job.version).worker
            under = [(name, way.value) for name, way in pending_job.job.choices]
            serial = worker.request_test(
                pending_job.pending_tests.pop(0), self.time_limit, self.memory_limit, under
            )
            pending_job.running_serials.add(serial)
            jobs_by_serial[serial] = pending_job

    def close(self) -> None:
        while self._live_workers:
            self._end_worker(next(iter(self._live_workers)))
        shutil.rmtree(self.folder, ignore_errors=True)

    # Workers

    def _get_live_worker(self, version: VersionUnderTest) -> _LiveWorker:
        """Return the worker of a release; the last few stay alive, since imports take longest."""
        living = self._live_workers.pop(version, None) or self._start_worker(version)
        self._live_workers[version] = living
        while len(self._live_workers) > MAX_LIVE_WORKERS:
            self._end_worker(next(iter(self._live_workers)))
        return living

    def _end_worker(self, version: VersionUnderTest, kill: bool = False) -> int:
        return self._live_workers.pop(version).worker.end(kill)

    def _start_worker(self, version: VersionUnderTest) -> _LiveWorker:
        self._workers_started += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        setting = GuardWorkerSettings(
            release=version.name,
            pytest_arguments=["--profile", self.profile, self.node],
            sides=[],
            toggle_ids=[],
            folder=tempfile.mkdtemp(dir=self.folder),
            device=self.device,
        )
        log = self.folder / f"{version.name}-{self._workers_started}.log"
        file = Path(self.node.partition("::")[0])
        root = (
            paths.project_folder() if file.is_relative_to(paths.project_folder()) else file.parent
        )
        worker = GuardWorkerProcess(version.python, setting, self.toggle_folders, root, log)
        try:
            message = self._await_collection(worker, version)
            if message.problems or not message.tasks:
                why = "\n".join(message.problems) or "it collects no test that guards anything"
                raise UnfixError(f"{self.node} cannot be run on SGLang {version.name}: {why}")
        except BaseException:
            worker.end()
            raise
        worker.accept_collected_tasks(message.tasks)
        return _LiveWorker(worker, [task.key for task in message.tasks])

    def _await_collection(
        self, worker: GuardWorkerProcess, version: VersionUnderTest
    ) -> GuardsCollected:
        message = worker.wait_for_first_message(START_TIMEOUT)
        if isinstance(message, GuardsCollected):
            return message
        if isinstance(message, StartFailure):
            raise NotReadyError(
                f"{self.node} on SGLang {version.name}: {message.problem}\n{worker.read_log_tail()}"
            )
        raise NotReadyError(f"SGLang {version.name} did not start: {worker.read_log_tail()}")

    def _collect_ended_sides(
        self, version: VersionUnderTest, jobs_by_serial: dict[int, _PendingJob]
    ) -> list[tuple[int, SideResult]]:
        """Collect the tests that ended; a dead worker ends all of its tests."""
        worker = self._live_workers[version].worker
        ready = select.select([worker.read_end], [], [], 0.2)[0]
        messages = worker.receive_messages() if ready else []
        overdue = worker.is_overdue(time.monotonic(), START_TIMEOUT, self.is_deterministic)
        if messages is None or overdue:
            code = self._end_worker(version, kill=overdue)
            return [
                (serial, _side_from_worker_exit(code, overdue, self.time_limit))
                for serial in jobs_by_serial
            ]
        ended = [one for one in messages if isinstance(one, TaskEnded)]
        for one in ended:
            worker.pop_task(one.serial)
        if any(one.is_device_lost for one in ended):
            self._end_worker(version)
        return [(one.serial, one.side) for one in ended]

    # Results

    def _is_selected(self, test_key: TaskKey) -> bool:
        return (
            not self.selected_test
            or test_key[1] == self.selected_test
            or test_key[1].startswith(f"{self.selected_test}[")
        )

    def _make_trial(self, pending_job: _PendingJob) -> BisectTrial:
        """Join the results of all parameters; ignore those that do not apply on the release."""
        applied = [side for side in pending_job.sides if side.outcome is not SideOutcome.NA]
        by_answer: dict[BisectAnswer, tuple[str, SideResult]] = {}
        for each in applied or pending_job.sides:
            answer, how = self._judge_side(each)
            by_answer[answer] = how, each
        answer = next(
            a
            for a in (BisectAnswer.FAILS, BisectAnswer.CANNOT_TELL, BisectAnswer.PASSES)
            if a in by_answer
        )
        how, side = by_answer[answer]
        ran: dict[str, int] = {}
        for each in pending_job.sides:
            for name, count in each.ran.items():
                ran[name] = ran.get(name, 0) + count
        known = not any(each.outcome is SideOutcome.LOST for each in pending_job.sides)
        return pending_job.job.make_trial(
            answer,
            how,
            sum(each.seconds + each.overhead for each in pending_job.sides),
            reach_by_toggle=ran if known and pending_job.job.choices else None,
            output="\n".join([*side.example, side.detail])[-MAX_OUTPUT_KEPT:].strip(),
            replay=self._build_replay_command(pending_job.job),
        )

    def _judge_side(self, side: SideResult) -> tuple[BisectAnswer, str]:
        if side.outcome is SideOutcome.PASSED:
            return BisectAnswer.PASSES, "passed"
        words = f"{side.outcome.value}: {side.headline}".strip(": ")
        if side.outcome not in BUG_OUTCOMES:
            # Another exception, a hang or a lack of memory is inconclusive.
            return BisectAnswer.CANNOT_TELL, words
        return self.rules.apply_symptom(
            BisectAnswer.FAILS, words, f"{side.headline}\n{side.detail}"
        )

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


def _side_from_worker_exit(code: int, overdue: bool, time_limit: float) -> SideResult:
    """Return the result of a test that ended its worker."""
    if overdue:
        return make_exit_result(process_exit.describe_exit(code, exceeded_seconds=time_limit))
    how = process_exit.describe_code(code)
    return SideResult("", SideOutcome.LOST, headline=f"it ended its worker ({how})")
