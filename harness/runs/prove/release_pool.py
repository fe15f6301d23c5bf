"""One release of a proof: its plan, its workers, and its results as they are stored."""

from __future__ import annotations

import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

from harness.core import machine
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import format_toggle_diff
from harness.runs.prove.plan import ModulesBuilt, ReleasePlan, StartBuilds
from harness.store.prove.table import ProveTable
from harness.store.prove.values import CellResult, ProveRun, ReleaseFacts, SideResult
from harness.workers.engine import Assignment, WorkerEnd
from harness.workers.guard_pool import GuardPool
from harness.workers.messages import GuardsCollected, GuardWorkerSettings, TaskKey, TestRequest


class ProveListener:
    """A listener that ignores the events of a run; a subclass shows them."""

    def report_release_start(self, release: str, device: str) -> None: ...

    def report_release_collected(self, facts: ReleaseFacts, cells: int, sides: int) -> None: ...

    def report_side(self, cell: CellResult, result: SideResult) -> None: ...

    def report_verdict(self, cell: CellResult) -> None: ...

    def report_problem(self, release: str, text: str) -> None: ...

    def report_builds(self, release: str, built: int, count: int) -> None: ...


class ReleasePool(GuardPool[TaskKey]):
    """A release's part of a run; an item is a side of a cell."""

    def __init__(
        self,
        plan: ReleasePlan,
        folder: Path,
        run: ProveRun,
        store: ProveTable,
        listener: ProveListener,
    ) -> None:
        request = self.request = plan.request
        super().__init__(
            plan.target.name,
            plan.target.python,
            folder / f"{plan.target.name}-{request.device}",
            request.find_working_folder(),
            jobs=request.jobs,
            time_limit=request.side_timeout,
            memory_limit=request.memory_limit,
            toggle_folders=request.toggle_folders,
        )
        self.plan, self.run, self.store, self.listener = plan, run, store, listener
        self.waiting = plan.waiting_tasks
        self._run_folders: list[str] = []  # what the workers' runs may write
        self._prepared: dict[str, tuple[str, ...]] = {}  # by guard, what is built for it
        self._builds: ModulesBuilt | None = None

    # Workers

    def make_settings(self, folder: str) -> GuardWorkerSettings:
        # Not below `folder`: the path of a socket has at most 107 characters.
        self._run_folders.append(tempfile.mkdtemp(prefix="unfix-"))
        request, target = self.request, self.plan.target
        return GuardWorkerSettings(
            release=target.requested_as or target.name,
            pytest_arguments=request.build_pytest_arguments(),
            sides=request.sides,
            toggle_ids=[each.id for each in request.toggles] if request.has_named_toggles else [],
            folder=folder,
            run_folders=self._run_folders[-1],
            device=request.device,
        )

    def end_workers(self) -> None:
        super().end_workers()
        for folder in self._run_folders:
            shutil.rmtree(folder, ignore_errors=True)

    def prepare(self) -> None:
        """Read the sources: the states of the toggles, and their patches."""
        self.listener.report_release_start(self.name, self.request.device)
        _fill_release_facts(self.plan)
        self.store.save_release(self.run.id, self.plan.facts)

    def plan_items(self, collected: GuardsCollected) -> None:
        plan = self.plan
        cells = plan.plan_tasks(collected)
        guarded, patches = {cell.toggle for cell in cells}, plan.facts.patches
        plan.facts.patches = {name: patches[name] for name in patches if name in guarded}
        self.store.save_release(self.run.id, plan.facts)
        self.store.save_planned_cells(self.run.id, cells)
        for problem in plan.facts.problems:
            self.listener.report_problem(self.name, problem)
        self.listener.report_release_collected(plan.facts, len(cells), plan.count_missing_runs())
        for cell in cells:
            if cell.verdict is not None:
                self._store_verdict(cell)
        start = self.request.start_builds
        if start is not None and self.request.device != "cuda":
            self._build_modules(collected, start)

    def _build_modules(self, collected: GuardsCollected, start: StartBuilds) -> None:
        """Start to build what the waiting guards need, and let the others run first."""
        self._prepared = {task.guard: task.prepared for task in collected.tasks}
        names = {name for task in self.waiting for name in self._prepared[task[1]]}
        sources = self.run.settings.get("sources", {}).get(self.name, "")
        report = partial(self.listener.report_builds, self.name)
        self._builds = start(self.plan.target, sources, names, self.jobs, report)
        self.blocked.extend(self.waiting)
        self.waiting.clear()
        self.refill()

    def refill(self) -> None:
        """Let the items run whose modules are built."""
        for item in [self.blocked.popleft() for _ in range(len(self.blocked))]:
            needed = self._prepared[item[1]]
            is_blocked = self._builds is not None and self._builds.is_missing(needed)
            (self.blocked if is_blocked else self.waiting).append(item)

    def make_request(self, item: TaskKey) -> tuple[TaskKey, TestRequest]:
        plan = self.plan
        # A proof has to succeed under any seed; `lifecycle` uses the worker's.
        seed = plan.draw_seed(item) if self.request.kind == "prove" else None
        request = TestRequest(side=item[2], random_seed=seed)
        if (repeated := plan.find_failure_to_repeat(item)) is not None:
            request.repeat_mode, request.blob = repeated.way, repeated.blob
            request.then_whole = plan.has_example_to_run_first(item)
        return item, request

    # Results

    def record_side(self, assignment: Assignment[TaskKey], side: SideResult) -> None:
        toggle, guard, side.side = assignment.item
        side.first = assignment.first_loss
        assignment.worker.reported_reach[toggle] += side.reach
        cell = self.plan.cells[toggle, guard]
        is_first = side.side not in cell.sides
        is_judged = self.plan.add_side_result(cell, side)
        for each in cell.sides.values() if is_judged else (cell.sides[side.side],):
            self.store.save_side(self.run.id, cell, each)
        if is_first:
            self.listener.report_side(cell, side)
        if is_judged:
            self._store_verdict(cell)

    def make_lost_side(self, lost: Assignment[TaskKey], end: WorkerEnd) -> SideResult:
        side = super().make_lost_side(lost, end)
        if not self.shares_workers:
            side.reach = lost.worker.read_unreported_reach(lost.item[0])
        return side

    def _store_verdict(self, cell: CellResult) -> None:
        self.store.save_verdict(self.run.id, cell)
        self.listener.report_verdict(cell)

    # Ends

    def report_lost_worker(self, end: WorkerEnd, was_idle: bool) -> None:
        if was_idle:
            self._record_problem(f"a worker ended while it had nothing to do ({end.words})")

    def give_up(self, problem: str, log: str = "", is_usage_error: bool = False) -> None:
        self.is_given_up = True
        self._record_problem(f"{problem}\n{log}")

    def finish_pool(self) -> None:
        self.end_workers()
        facts = self.plan.facts
        facts.seconds = time.monotonic() - (self.started or time.monotonic())
        self.store.save_release(self.run.id, facts)
        self.run.releases.append(facts)

    def _record_problem(self, text: str) -> None:
        self.plan.facts.problems.append(text)
        self.store.save_release(self.run.id, self.plan.facts)
        self.listener.report_problem(self.name, text)


def _fill_release_facts(plan: ReleasePlan) -> None:
    """Read the versions, the machine, and the state of each toggle of a release."""
    target, release_facts = plan.target, plan.facts
    facts = machine.collect_machine_facts(str(target.python))
    if target.requested_as == "current":  # which may be any checkout
        facts["sources"] = machine.describe_sources(target.sources.describe_location(""))
    release_facts.versions = facts.pop("versions")
    release_facts.machine = facts
    for toggle in plan.request.toggles:
        finding = find_toggle_status(toggle, target.sources)
        release_facts.states[toggle.id] = finding.state.value
        if finding.state in (ToggleState.FIXED, ToggleState.BUGGY):
            release_facts.patches[toggle.id] = format_toggle_diff(finding, target.sources)
