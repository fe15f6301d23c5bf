"""A run of `prove` or `lifecycle`: workers over releases, cells over workers, each side stored.

The run has one thread and one `select`. The earliest release with a waiting task goes first, and
the next one's worker imports meanwhile, so that no core waits for an import. Tasks that need the
machine to themselves come last.
"""

from __future__ import annotations

import select
import shutil
import time
from functools import partial

from harness.core import machine, paths, process_exit
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import format_toggle_diff
from harness.runs.prove.earlier_runs import iterate_earlier_repetitions
from harness.runs.prove.plan import ProveRequest, ReleasePlan
from harness.runs.prove.worker_pool import ReleaseWorkerPool
from harness.store.prove.table import ProveTable
from harness.store.prove.values import (
    CellResult,
    ProveRun,
    ReleaseFacts,
    RepeatMode,
    SideOutcome,
    SideResult,
)
from harness.workers.messages import (
    GuardsCollected,
    GuardWorkerMessage,
    StartFailure,
    TaskEnded,
    TaskKey,
)
from harness.workers.release_target import ReleaseTarget
from harness.workers.supervisor import make_exit_result
from harness.workers.worker_process import START_TIMEOUT, GuardWorkerProcess

MAX_ACTIVE_RELEASES = 2  # releases at once with present or future tasks


class ProveListener:
    """A listener that ignores the events of a run; a subclass shows them."""

    def report_release_start(self, release: str) -> None: ...

    def report_release_collected(self, facts: ReleaseFacts, cells: int, sides: int) -> None: ...

    def report_side(self, cell: CellResult, result: SideResult) -> None: ...

    def report_verdict(self, cell: CellResult) -> None: ...

    def report_problem(self, release: str, text: str) -> None: ...


class ProveRunner:
    """One run, from its first worker to its end."""

    def __init__(
        self, request: ProveRequest, run: ProveRun, store: ProveTable, listener: ProveListener
    ) -> None:
        self.request = request
        self.run = run
        self.store = store
        self.listener = listener
        self.folder = paths.state_folder() / "runs" / run.id
        earlier = partial(iterate_earlier_repetitions, store, run)
        plans = [ReleasePlan(request, target, earlier) for target in request.targets]
        self.pools = [ReleaseWorkerPool(plan, self.folder) for plan in plans]
        self.started_at = time.monotonic() - run.seconds

    def execute(self) -> None:
        """Run until no task is left, or until Ctrl-C. Each ended side is stored either way."""
        status = "stopped"
        self.store.begin(self.run)
        try:
            while pools := self.select_active_pools():
                for pool in pools:
                    self._start_pool(pool)
                self.hand_out_tasks(pools)
                self._receive_messages(pools)
                for pool in pools:
                    self._finish_pool(pool)
            status = "finished"
        finally:
            for pool in self.pools:
                pool.end()
            self.run.status, self.run.seconds = status, time.monotonic() - self.started_at
            self.store.save(self.run)
            for pool in self.pools:
                shutil.rmtree(pool.folder, ignore_errors=True)
            if not any(pool.plan.facts.problems for pool in self.pools):
                shutil.rmtree(self.folder, ignore_errors=True)  # the logs

    # Starting

    def select_active_pools(self) -> list[ReleaseWorkerPool]:
        """Return the releases that have begun, and the next ones while few have waiting tasks."""
        pools = [pool for pool in self.pools if not pool.is_done]
        active = [pool for pool in pools if pool.started_at is not None]
        free = MAX_ACTIVE_RELEASES - sum(not pool.has_only_exclusive_left for pool in active)
        return active + [pool for pool in pools if pool.started_at is None][: max(0, free)]

    def _start_pool(self, pool: ReleaseWorkerPool) -> None:
        is_first_start = pool.started_at is None
        pool.start_workers()
        if is_first_start:
            self.listener.report_release_start(pool.plan.target.name)
            # Read the sources while the worker imports.
            _fill_release_facts(pool.plan.facts, pool.plan.target, self.request)
            self.store.save_release(self.run.id, pool.plan.facts)

    def hand_out_tasks(self, pools: list[ReleaseWorkerPool]) -> None:
        free = self.request.jobs - sum(pool.running_count for pool in pools)
        only_exclusive = all(pool.has_only_exclusive_left for pool in pools)
        for pool in pools:
            while free > 0 and not any(each.is_running_exclusive for each in pools):
                if pool.is_exclusive_next and not (only_exclusive and free == self.request.jobs):
                    break  # until nothing else runs or waits
                if (pair := pool.take_next_task()) is None:
                    break
                worker, task = pair
                # A proof has to succeed under any seed; `lifecycle` uses the worker's.
                is_proof = self.request.kind == "prove"
                worker.request_test(
                    task,
                    self.request.side_timeout,
                    self.request.memory_limit,
                    random_seed=pool.plan.draw_seed(task) if is_proof else None,
                    repeated=pool.plan.find_failure_to_repeat(task),
                    then_whole=pool.plan.has_example_to_run_first(task),
                )
                free -= 1

    # Listening

    def _receive_messages(self, pools: list[ReleaseWorkerPool]) -> None:
        workers = {worker.read_end: (pool, worker) for pool in pools for worker in pool.workers}
        if not workers:
            return
        for end in select.select(list(workers), [], [], 0.2)[0]:
            pool, worker = workers[end]
            messages = worker.receive_messages()
            if messages is None:
                self._handle_worker_exit(pool, worker)
            for each in messages or ():
                self._handle_message(pool, worker, each)
        now = time.monotonic()
        for pool, worker in workers.values():
            if worker in pool.workers and worker.is_overdue(now, START_TIMEOUT, pool.can_fork):
                self._handle_worker_exit(pool, worker, overdue=True)

    def _handle_message(
        self, pool: ReleaseWorkerPool, worker: GuardWorkerProcess, message: GuardWorkerMessage
    ) -> None:
        if isinstance(message, StartFailure):
            log = worker.read_log_tail()
            # For a wrong call, pytest's error line is enough.
            why = log.rpartition("ERROR: ")[2] if message.is_usage_error else log
            self._record_problem(pool, f"{message.problem}\n{why}")
            pool.abandon()
        elif isinstance(message, GuardsCollected):
            self._handle_collected(pool, worker, message)
        elif isinstance(message, TaskEnded):
            task = worker.pop_task(message.serial)
            # A GPU has no memory limit for each test: other tests may have filled it.
            is_device_full = (
                message.side.outcome is SideOutcome.OUT_OF_MEMORY
                and pool.plan.facts.device == "cuda"
            )
            if is_device_full and pool.plan.schedule_exclusive_retry(task, message.side.headline):
                pass
            elif message.side.outcome is not SideOutcome.LOST:
                worker.reported_reach[task[0]] += message.side.reach
                self._record_side(pool, task, message.side)
            elif not pool.plan.schedule_exclusive_retry(task, message.side.headline):
                self._record_side(pool, task, message.side)
            if message.is_device_lost:
                pool.retire_worker(worker)

    def _handle_collected(
        self, pool: ReleaseWorkerPool, worker: GuardWorkerProcess, collected: GuardsCollected
    ) -> None:
        plan = pool.plan
        pool.can_fork = collected.can_fork
        worker.accept_collected_tasks(collected.tasks)
        if plan.is_collected:
            if frozenset(worker.task_numbers) != plan.task_keys:
                self._record_problem(pool, "two workers do not collect the same guards")
                pool.abandon()
            return
        cells = plan.plan_tasks(collected)
        self.store.save_release(self.run.id, plan.facts)
        self.store.save_planned_cells(self.run.id, cells)
        for problem in plan.facts.problems:
            self.listener.report_problem(plan.target.name, problem)
        self.listener.report_release_collected(plan.facts, len(cells), plan.count_missing_runs())
        for cell in cells:
            if cell.verdict is not None:
                self.store.save_verdict(self.run.id, cell)
                self.listener.report_verdict(cell)

    def _record_side(self, pool: ReleaseWorkerPool, task: TaskKey, result: SideResult) -> None:
        cell = pool.plan.cells[task[:2]]
        is_first = result.side not in cell.sides
        judged = pool.plan.add_side_result(cell, result)
        for each in cell.sides.values() if judged else (cell.sides[result.side],):
            self.store.save_side(self.run.id, cell, each)
        if is_first:
            self.listener.report_side(cell, result)
        if judged:
            self.store.save_verdict(self.run.id, cell)
            self.listener.report_verdict(cell)

    def _handle_worker_exit(
        self, pool: ReleaseWorkerPool, worker: GuardWorkerProcess, overdue: bool = False
    ) -> None:
        """Record or repeat the tasks of a worker that ended or hangs."""
        code = pool.retire_worker(worker, kill=overdue)
        how = process_exit.describe_code(code)
        if not worker.is_ready:
            when = "did not start in time" if overdue else "ended before it could begin"
            self._record_problem(pool, f"the worker {when} ({how}): {worker.read_log_tail()}")
            pool.abandon()
        elif not worker.running_tasks:
            self._record_problem(pool, f"the worker ended while it had nothing to do ({how})")
            pool.abandon()
        for task in worker.running_tasks.values():
            toggle, _, side = task
            why = f"it ended its worker ({how})"
            if not pool.can_fork:
                limit = self.request.side_timeout if overdue else None
                died = make_exit_result(process_exit.describe_exit(code, exceeded_seconds=limit))
                died.side, died.detail, died.reach = (
                    side,
                    worker.read_log_tail(),
                    worker.read_unreported_reach(toggle),
                )
                died.way = RepeatMode.SEARCH
                self._record_side(pool, task, died)
            elif not pool.plan.schedule_exclusive_retry(task, why):
                self._record_side(
                    pool,
                    task,
                    SideResult(side, SideOutcome.LOST, headline=f"run alone, {why} again"),
                )

    # Ending

    def _finish_pool(self, pool: ReleaseWorkerPool) -> None:
        if not pool.is_done or pool.has_ended:
            return
        pool.end()
        shutil.rmtree(pool.folder, ignore_errors=True)
        facts = pool.plan.facts
        facts.seconds = time.monotonic() - (pool.started_at or time.monotonic())
        self.store.save_release(self.run.id, facts)
        self.run.releases.append(facts)

    def _record_problem(self, pool: ReleaseWorkerPool, text: str) -> None:
        pool.plan.facts.problems.append(text)
        self.store.save_release(self.run.id, pool.plan.facts)
        self.listener.report_problem(pool.plan.target.name, text)


def _fill_release_facts(
    release_facts: ReleaseFacts, target: ReleaseTarget, request: ProveRequest
) -> None:
    """Read the versions, the machine, and the state of each toggle of a release."""
    facts = machine.collect_machine_facts(str(target.python))
    if target.requested_as == "current":  # which may be any checkout
        facts["sources"] = machine.describe_sources(target.sources.describe_location(""))
    release_facts.versions = facts.pop("versions")
    release_facts.machine = facts
    for toggle in request.toggles:
        finding = find_toggle_status(toggle, target.sources)
        release_facts.states[toggle.id] = finding.state.value
        if finding.state in (ToggleState.FIXED, ToggleState.BUGGY):
            release_facts.patches[toggle.id] = format_toggle_diff(finding, target.sources)
