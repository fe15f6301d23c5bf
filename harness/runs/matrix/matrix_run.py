"""One run of a planned matrix: the cells of a request, executed and stored."""

from __future__ import annotations

import datetime
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harness.core import machine, paths
from harness.core.errors import NotReadyError, UnfixError
from harness.core.outcomes import RunStatus
from harness.runs.matrix import shards
from harness.runs.matrix.cell_plan import MatrixCell, MatrixPlan
from harness.runs.matrix.cell_scheduler import (
    CellExecutor,
    CellScheduler,
    RetryRules,
    RunLocation,
    SaveAttempts,
)
from harness.store.database import Store
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import CellAttempt, MatrixRun


@dataclass(frozen=True)
class MatrixRunRequest:
    """The arguments of `unfix matrix run`."""

    file: Path
    shard: str = ""  # as I/N
    costs: Path | None = None  # the store whose times split the shards
    cells: tuple[str, ...] = ()  # identities, or their beginnings
    on_ray: bool = False
    address: str | None = None  # the address of a Ray cluster
    ship: bool = False
    jobs: int | None = None
    resume: bool = False
    rules: RetryRules = field(default_factory=RetryRules)

    def __post_init__(self) -> None:
        for is_wrong, problem in (
            (self.jobs is not None and self.jobs < 1, f"--jobs {self.jobs} is too small"),
            (self.rules.retries < 0, f"--retries {self.rules.retries} is too small"),
            (self.address and not self.on_ray, "--address names a Ray cluster: add --on ray"),
            (self.ship and not self.on_ray, "--ship installs unfix on a cluster: add --on ray"),
            (
                self.cells and (self.shard or self.resume),
                "--cell runs cells by themselves: leave out --shard and --resume",
            ),
            (self.costs and not self.shard, "--costs splits shards: it needs --shard"),
        ):
            if is_wrong:
                raise UnfixError(problem)

    @property
    def shard_number_and_count(self) -> tuple[int, int]:
        number, _, count = (self.shard or "1/1").partition("/")
        if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
            raise UnfixError(f"--shard {self.shard} is no share: it is I/N, from 1/N to N/N")
        return int(number), int(count)


def choose_cells(plan: MatrixPlan, request: MatrixRunRequest) -> list[MatrixCell]:
    """Choose the cells of the plan that the request runs."""
    if request.cells:
        return [_find_cell(plan, name) for name in dict.fromkeys(request.cells)]
    if not request.shard:
        return plan.cells
    costs: dict[str, float] = {}
    if request.costs:
        store = Store(request.costs, create=False)
        costs = MatrixTable(store).load_median_seconds()
        store.close()
    shard = set(shards.select_shard(plan, costs, *request.shard_number_and_count).cells)
    return [cell for cell in plan.cells if cell.identity in shard]


def _find_cell(plan: MatrixPlan, name: str) -> MatrixCell:
    cells = [cell for cell in plan.cells if cell.identity.startswith(name)]
    if len(cells) != 1:
        count = "more than one cell" if cells else "no cell"
        raise UnfixError(
            f"{plan.name} has {count} {name}: `unfix matrix plan` shows the identities of its cells"
        )
    return cells[0]


def begin_or_resume(
    store: Store,
    request: MatrixRunRequest,
    plan: MatrixPlan,
    cells: list[MatrixCell],
    command: list[str],
) -> MatrixRun:
    """Begin a new run of these cells, or continue the stored run."""
    number, count = request.shard_number_and_count
    where = "ray" if request.on_ray else "local"
    if request.resume:
        newest = shards.find_resumable_run(MatrixTable(store).list_runs(), plan, number, count)
        run = MatrixTable(store).load_whole(newest)
        shards.check_same_cells(run, cells)
        return msgspec.structs.replace(run, where=where, notes=[])
    now = datetime.datetime.now(datetime.UTC)
    return MatrixRun(
        id=f"matrix-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        name=plan.name,
        file=str(request.file),
        plan=plan.digest,
        total=len(plan.cells),
        axes=plan.axes,
        started=now.isoformat(timespec="milliseconds"),
        command=command,
        commit=machine.describe_commit(),
        machine=machine.describe_machine(),
        where=where,
        number=number,
        of=count,
        only=[cell.identity for cell in cells] if request.cells else [],
        cells=shards.make_unrun_cells(cells),
    )


def execute_run(
    store: Store,
    run: MatrixRun,
    cells: list[MatrixCell],
    request: MatrixRunRequest,
    on_attempts: SaveAttempts,
) -> None:
    """Run the cells that are not done and store each attempt; an interrupt ends the run."""
    executor = make_executor(request)
    started, earlier_seconds = time.monotonic(), run.seconds
    is_complete = False

    def save(attempts: list[tuple[str, CellAttempt]]) -> None:
        MatrixTable(store).save_attempts(run.id, attempts)
        on_attempts(attempts)

    try:
        MatrixTable(store).begin(run)
        earlier = {cell.identity: cell.attempts for cell in run.cells if not cell.is_done}
        location = RunLocation(run.id, paths.state_folder() / "matrix" / run.id, Path.cwd())
        remaining = [cell for cell in cells if cell.identity in earlier]
        scheduler = CellScheduler(remaining, executor, location, request.rules, save, earlier)
        is_complete = scheduler.run()
        run.notes = [
            f"{shortage}: the cells that need it are not-ready"
            for shortage in scheduler.shortages.values()
        ]
    finally:
        run.seconds = earlier_seconds + time.monotonic() - started
        run.status = RunStatus.FINISHED if is_complete else RunStatus.STOPPED
        try:
            MatrixTable(store).save(run)
        finally:
            executor.close()


def make_executor(request: MatrixRunRequest) -> CellExecutor:
    if not request.on_ray:
        from harness.runs.matrix.local_executor import LocalExecutor

        return LocalExecutor(request.jobs)
    try:
        from harness.runs.matrix.ray_executor import RayExecutor
    except ImportError as error:
        raise NotReadyError("Ray is not installed here: pip install 'unfix[ray]'") from error
    return RayExecutor(request.address, request.jobs, ship=request.ship)
