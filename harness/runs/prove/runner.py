"""A run: workers over releases, cells over workers, each side kept as it ends.

One thread and one `select`. The earliest release with something to do goes first; the next one's
worker imports meanwhile, so that no core waits for an import. What is to run with the machine to
itself comes last of all.
"""

from __future__ import annotations

import secrets
import select
import shutil
import time

from harness.core import machine, paths, process_exit
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.patching import diffs
from harness.runs.prove.earlier_runs import EarlierRuns
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

MAX_ACTIVE_RELEASES = 2  # releases at once that have something to hand out, or will have


class ProveListener:
    """Who wants to know how a run goes; this one does not."""

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
        earlier = EarlierRuns(store, run)
        lefts = [ReleasePlan(request, target, earlier) for target in request.targets]
        self.pools = [ReleaseWorkerPool(left, self.folder) for left in lefts]
        self.started_at = time.monotonic() - run.seconds

    def execute(self) -> None:
        """Until nothing is left to do, or Ctrl-C: what is done by then is kept."""
        status = "stopped"
        self.store.begin(self.run)
        try:
            while lanes := self.select_active_pools():
                for lane in lanes:
                    self._start_pool(lane)
                self.hand_out_tasks(lanes)
                self._receive_messages(lanes)
                for lane in lanes:
                    self._finish_pool(lane)
            status = "finished"
        finally:
            for lane in self.pools:
                lane.end()
            self.run.status, self.run.seconds = status, time.monotonic() - self.started_at
            self.store.save(self.run)
            for lane in self.pools:
                shutil.rmtree(lane.folder, ignore_errors=True)
            if not any(lane.plan.facts.problems for lane in self.pools):
                shutil.rmtree(self.folder, ignore_errors=True)  # the logs

    # Starting

    def select_active_pools(self) -> list[ReleaseWorkerPool]:
        """Those that have begun, and the next, while few of them have something to hand out."""
        left = [lane for lane in self.pools if not lane.is_done]
        begun = [lane for lane in left if lane.started_at is not None]
        room = MAX_ACTIVE_RELEASES - sum(not lane.has_only_exclusive_left for lane in begun)
        return begun + [lane for lane in left if lane.started_at is None][: max(0, room)]

    def _start_pool(self, pool: ReleaseWorkerPool) -> None:
        fresh = pool.started_at is None
        pool.start_workers()
        if fresh:
            self.listener.report_release_start(pool.plan.target.name)
            # The worker imports meanwhile.
            _fill_release_facts(pool.plan.facts, pool.plan.target, self.request)
            self.store.save_release(self.run.id, pool.plan.facts)

    def hand_out_tasks(self, pools: list[ReleaseWorkerPool]) -> None:
        free = self.request.jobs - sum(lane.running_count for lane in pools)
        last = all(lane.has_only_exclusive_left for lane in pools)
        for lane in pools:
            while free > 0 and not any(each.is_running_exclusive for each in pools):
                if lane.is_exclusive_next and not (last and free == self.request.jobs):
                    break  # until nothing else runs, or will
                if (given := lane.take_next_task()) is None:
                    break
                worker, task = given
                again, whole = (
                    lane.plan.find_failure_to_repeat(task),
                    lane.plan.has_example_to_run_first(task),
                )
                # A life is told with what the worker has; a proof has to hold with any.
                chance = secrets.randbits(32) if self.request.kind == "prove" else None
                asked = self.request
                limits = asked.side_timeout, asked.memory_limit
                worker.request_test(
                    task, *limits, random_seed=chance, repeated=again, then_whole=whole
                )
                free -= 1

    # Listening

    def _receive_messages(self, pools: list[ReleaseWorkerPool]) -> None:
        workers = {worker.read_end: (lane, worker) for lane in pools for worker in lane.workers}
        if not workers:
            return
        for end in select.select(list(workers), [], [], 0.2)[0]:
            lane, worker = workers[end]
            said = worker.receive_messages()
            if said is None:
                self._handle_worker_exit(lane, worker)
            for each in said or ():
                self._handle_message(lane, worker, each)
        now = time.monotonic()
        for lane, worker in workers.values():
            if worker in lane.workers and worker.is_overdue(now, START_TIMEOUT, lane.can_fork):
                self._handle_worker_exit(lane, worker, overdue=True)

    def _handle_message(
        self, pool: ReleaseWorkerPool, worker: GuardWorkerProcess, message: GuardWorkerMessage
    ) -> None:
        if isinstance(message, StartFailure):
            words = worker.read_log_tail()
            # Of a call that pytest cannot read, what it says is enough.
            why = words.rpartition("ERROR: ")[2] if message.is_usage_error else words
            self._record_problem(pool, f"{message.problem}\n{why}")
            pool.abandon()
        elif isinstance(message, GuardsCollected):
            self._handle_collected(pool, worker, message)
        elif isinstance(message, TaskEnded):
            task = worker.pop_task(message.serial)
            # A GPU's memory has no limit for each test: others may have had what this one lacked.
            full = (
                message.side.outcome is SideOutcome.OUT_OF_MEMORY
                and pool.plan.facts.device != "cpu"
            )
            if full and pool.plan.schedule_exclusive_retry(task, message.side.headline):
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
        left = pool.plan
        pool.can_fork = collected.can_fork
        worker.accept_collected_tasks(collected.tasks)
        if left.is_collected:
            if frozenset(worker.task_numbers) != left.task_keys:
                self._record_problem(pool, "two workers do not collect the same guards")
                pool.abandon()
            return
        cells = left.plan_tasks(collected)
        self.store.save_release(self.run.id, left.facts)
        self.store.save_planned_cells(self.run.id, cells)
        for problem in left.facts.problems:
            self.listener.report_problem(left.target.name, problem)
        self.listener.report_release_collected(left.facts, len(cells), len(left.waiting_tasks))
        for cell in cells:
            if cell.verdict is not None:
                self.store.save_verdict(self.run.id, cell)
                self.listener.report_verdict(cell)

    def _record_side(self, pool: ReleaseWorkerPool, task: TaskKey, result: SideResult) -> None:
        cell = pool.plan.cells[task[:2]]
        first = result.side not in cell.sides
        judged = pool.plan.add_side_result(cell, result)
        for each in cell.sides.values() if judged else (cell.sides[result.side],):
            self.store.save_side(self.run.id, cell, each)
        if first:
            self.listener.report_side(cell, result)
        if judged:
            self.store.save_verdict(self.run.id, cell)
            self.listener.report_verdict(cell)

    def _handle_worker_exit(
        self, pool: ReleaseWorkerPool, worker: GuardWorkerProcess, overdue: bool = False
    ) -> None:
        """A worker ended by itself, or had to be ended; what it ran is told or run again alone."""
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
        on = pool.plan.facts
        on.seconds = time.monotonic() - (pool.started_at or time.monotonic())
        self.store.save_release(self.run.id, on)
        self.run.releases.append(on)

    def _record_problem(self, pool: ReleaseWorkerPool, text: str) -> None:
        pool.plan.facts.problems.append(text)
        self.store.save_release(self.run.id, pool.plan.facts)
        self.listener.report_problem(pool.plan.target.name, text)


def _fill_release_facts(
    release_facts: ReleaseFacts, target: ReleaseTarget, request: ProveRequest
) -> None:
    """What the sources and the environment say of a release."""
    facts = machine.collect_machine_facts(str(target.python))
    release_facts.versions = facts.pop("versions")
    release_facts.machine = facts
    for toggle in request.toggles:
        finding = find_toggle_status(toggle, target.sources)
        release_facts.states[toggle.id] = finding.state.value
        if finding.state in (ToggleState.FIXED, ToggleState.BUGGY):
            release_facts.patches[toggle.id] = diffs.format_toggle_diff(finding, target.sources)
