"""Which stored run a plan goes on with, and what of it is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.core.errors import UnfixError
from harness.runs.matrix.cell_plan import MatrixCell, MatrixPlan
from harness.store.matrix.values import MatrixCellResult, MatrixRun


def find_resumable_run(
    runs: Sequence[MatrixRun], plan: MatrixPlan, shard_number: int, shard_count: int
) -> MatrixRun:
    """The newest run of this plan and shard; one of another plan is never gone on with."""
    whole = [run for run in runs if not run.only]
    share = f"shard {shard_number}/{shard_count} of " if shard_count > 1 else ""
    mine = [run for run in whole if (run.number, run.of) == (shard_number, shard_count)]
    alike = [run for run in mine if run.plan == plan.digest]
    if alike:
        return alike[-1]
    others = [run for run in mine if run.name == plan.name]
    if others:
        newest = others[-1]
        raise UnfixError(
            f"nothing to resume: the plan is {plan.digest} now, and the newest run of "
            f"{share}{plan.name}, {newest.id}, is of plan {newest.plan}; "
            "leave --resume out to run the new plan, or put the matrix file back"
        )
    raise UnfixError(
        f"nothing to resume: no run of {share}{plan.name} is stored; leave --resume out"
    )


def check_same_cells(run: MatrixRun, cells: Sequence[MatrixCell]) -> None:
    """The same share of the plan: shards may have been split by other costs."""
    stored, wanted = {cell.identity for cell in run.cells}, {cell.identity for cell in cells}
    if stored != wanted:
        raise UnfixError(
            f"run {run.id} has {len(stored)} cells, of which {len(stored - wanted)} are not in "
            "this shard: it was split by other --costs"
        )


def make_unrun_cells(cells: Iterable[MatrixCell]) -> list[MatrixCellResult]:
    """The cells as a store keeps them, not run yet."""
    return [
        MatrixCellResult(
            cell.identity, cell.values, cell.work, cell.command, cell.why, cell.seconds
        )
        for cell in cells
    ]
