"""The shards of a plan: split over machines, resumed from a store, merged into one run.

The split depends on the plan and the costs alone, so machines with equal costs agree on it without
a message: the longest cell first, each to the shard with the least so far. Costs 9, 5, 4 and 3 over
two shards give 9 + 3 and 5 + 4.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from harness.core.errors import UnfixError
from harness.core.outcomes import join_statuses
from harness.runs.matrix.cell_plan import MatrixCell, MatrixPlan, PlanShard
from harness.store.matrix.values import MatrixCellResult, MatrixRun

_SPLIT_HINT = "the machines split the plan differently; give all of them the same --costs, or none"

# Splitting


def estimate_costs(plan: MatrixPlan, known_costs: Mapping[str, float]) -> dict[str, float]:
    """Estimate the seconds of each cell; a cell that never ran takes the mean, or 1 if none ran."""
    known = [known_costs[cell.identity] for cell in plan.cells if cell.identity in known_costs]
    mean = sum(known) / len(known) if known else 1.0
    return {cell.identity: known_costs.get(cell.identity, mean) for cell in plan.cells}


def split_plan(
    plan: MatrixPlan, known_costs: Mapping[str, float], shard_count: int
) -> list[PlanShard]:
    """Split a plan into its shards, each with its cells in the plan's order."""
    if not 1 <= shard_count <= len(plan.cells):
        raise UnfixError(
            f"{len(plan.cells)} cells make from 1 to {len(plan.cells)} shards, not {shard_count}"
        )
    costs = estimate_costs(plan, known_costs)
    loads = [(0.0, number) for number in range(1, shard_count + 1)]
    shard_of: dict[str, int] = {}
    for identity in sorted(costs, key=lambda identity: (-costs[identity], identity)):
        load, number = heapq.heappop(loads)
        shard_of[identity] = number
        heapq.heappush(loads, (load + costs[identity], number))
    shards = []
    for number in range(1, shard_count + 1):
        cells = [cell.identity for cell in plan.cells if shard_of[cell.identity] == number]
        seconds = sum(costs[identity] for identity in cells)
        shards.append(PlanShard(plan.digest, number, shard_count, cells, seconds))
    return shards


def select_shard(
    plan: MatrixPlan, costs: Mapping[str, float], number: int, shard_count: int
) -> PlanShard:
    """Select one shard; every machine computes the same one."""
    if not 1 <= number <= shard_count:
        raise UnfixError(f"shard {number}/{shard_count}: it is a number from 1 to {shard_count}")
    return split_plan(plan, costs, shard_count)[number - 1]


def compute_imbalance(shards: Sequence[PlanShard]) -> float:
    """Compute the time of the slowest shard over the mean time."""
    mean = sum(shard.seconds for shard in shards) / len(shards)
    return max(shard.seconds for shard in shards) / mean if mean else 1.0


# Resuming


def make_unrun_cells(cells: Iterable[MatrixCell]) -> list[MatrixCellResult]:
    """Make the stored form of cells, without an attempt."""
    return [
        MatrixCellResult(
            cell.identity, cell.values, cell.work, cell.command, cell.why, cell.seconds
        )
        for cell in cells
    ]


def find_resumable_run(
    runs: Sequence[MatrixRun], plan: MatrixPlan, shard_number: int, shard_count: int
) -> MatrixRun:
    """Find the newest run of this plan and shard; refuse a run of another plan."""
    name = f"shard {shard_number}/{shard_count} of " if shard_count > 1 else ""
    name += plan.name
    shard = (shard_number, shard_count)
    same_shard = [
        run
        for run in runs
        if not run.only and run.name == plan.name and (run.number, run.of) == shard
    ]
    for run in reversed(same_shard):
        if run.plan == plan.digest:
            return run
    if same_shard:
        newest = same_shard[-1]
        raise UnfixError(
            f"nothing to resume: the plan is {plan.digest} now, and the newest run of {name}, "
            f"{newest.id}, is of plan {newest.plan}; leave --resume out to run the new plan, "
            "or put the matrix file back"
        )
    raise UnfixError(f"nothing to resume: no run of {name} is stored; leave --resume out")


def check_same_cells(run: MatrixRun, cells: Sequence[MatrixCell]) -> None:
    """Refuse to resume a shard that was split by other costs."""
    stored, planned = {cell.identity for cell in run.cells}, {cell.identity for cell in cells}
    if stored != planned:
        raise UnfixError(
            f"run {run.id} has {len(stored)} cells, of which {len(stored - planned)} are not in "
            "this shard: it was split by other --costs"
        )


# Merging


class ShardPart(msgspec.Struct, frozen=True):
    """The run of one shard, and the store that it came from."""

    run: MatrixRun
    source: str


def select_newest_shards(runs: Sequence[MatrixRun], source: str) -> list[MatrixRun]:
    """Select the newest run of each shard of a store's newest plan."""
    shard_runs = sorted((run for run in runs if not run.only), key=lambda run: run.started)
    if not shard_runs:
        raise UnfixError(
            f"{source} holds no run of `unfix matrix run`, as the other stores do; leave it out, "
            "or merge the proofs alone with `unfix report --proofs --merge …`"
        )
    newest = shard_runs[-1]
    same_plan = [run for run in shard_runs if (run.plan, run.of) == (newest.plan, newest.of)]
    return list({run.number: run for run in same_plan}.values())


def merge_shards(parts: Sequence[ShardPart]) -> MatrixRun:
    """Merge all shards into one run; refuse a missing, double or foreign shard."""
    parts = _deduplicate_parts(parts)
    first = parts[0].run
    if len(parts) == 1 and first.of == 1:
        return first
    _check_one_plan(parts)
    _check_shard_numbers(parts)
    cells = _merge_cells(parts)
    runs = sorted((part.run for part in parts), key=lambda run: run.number)
    return msgspec.structs.replace(
        first,
        id="+".join(run.id for run in runs),
        started=min(run.started for run in runs),
        status=join_statuses(run.status for run in runs),
        seconds=max(run.seconds for run in runs),
        command=runs[0].command,
        where=f"{len(runs)} shards",
        number=1,
        of=1,
        notes=list(dict.fromkeys(note for run in runs for note in run.notes)),
        cells=cells,
    )


def _deduplicate_parts(parts: Sequence[ShardPart]) -> list[ShardPart]:
    """Drop copies: of one run in two stores (one merged the other) keep the more complete one."""
    by_run: dict[str, ShardPart] = {}
    for part in parts:
        known = by_run.get(part.run.id)
        if known is None or _count_done(part.run) > _count_done(known.run):
            by_run[part.run.id] = part
    return list(by_run.values())


def _count_done(run: MatrixRun) -> int:
    return sum(cell.outcome is not None for cell in run.cells)


def _check_one_plan(parts: Sequence[ShardPart]) -> None:
    sources: dict[tuple[str, int], list[str]] = {}
    for part in parts:
        sources.setdefault((part.run.plan, part.run.of), []).append(part.source)
    if len(sources) > 1:
        plans = "; ".join(
            f"{', '.join(names)}: plan {plan} in {of}" for (plan, of), names in sources.items()
        )
        raise UnfixError(
            f"these are shards of different plans: {plans}; "
            "run all shards from the same matrix file and with the same number of shards"
        )


def _check_shard_numbers(parts: Sequence[ShardPart]) -> None:
    of = parts[0].run.of
    counts = Counter(part.run.number for part in parts)
    doubled = [
        f"{number}/{of} in {' and in '.join(p.source for p in parts if p.run.number == number)}"
        for number in sorted(counts)
        if counts[number] > 1
    ]
    if doubled:
        raise UnfixError(f"a shard is there twice: {'; '.join(doubled)}; leave one of them out")
    absent = [f"{number}/{of}" for number in range(1, of + 1) if number not in counts]
    if absent:
        subject = "shards are" if len(absent) > 1 else "a shard is"
        raise UnfixError(
            f"{subject} absent: {', '.join(absent)}; run `unfix matrix run {parts[0].run.file} "
            f"--shard {absent[0]}` and name that store, too"
        )


def _merge_cells(parts: Sequence[ShardPart]) -> list[MatrixCellResult]:
    cells: dict[str, MatrixCellResult] = {}
    for part in parts:
        for cell in part.run.cells:
            if cell.identity in cells:
                raise UnfixError(
                    f"cell {cell.identity} is in shard {part.run.number}/{part.run.of} and in "
                    f"another one: {_SPLIT_HINT}"
                )
            cells[cell.identity] = cell
    total = parts[0].run.total
    if len(cells) != total:
        raise UnfixError(f"the shards hold {len(cells)} of the plan's {total} cells: {_SPLIT_HINT}")
    return list(cells.values())
