"""The shards of one plan, run on several machines, seen as one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from harness.core.errors import UnfixError
from harness.store.matrix.values import MatrixCellResult, MatrixRun


class ShardPart(msgspec.Struct, frozen=True):
    """One shard, and whose store it came from."""

    run: MatrixRun
    source: str


def select_newest_shards(runs: Sequence[MatrixRun], source: str) -> list[MatrixRun]:
    """Of a store's runs those that count: of its newest plan, the newest run of each shard."""
    whole = [run for run in runs if not run.only]
    if not whole:
        raise UnfixError(
            f"{source} holds no run of `unfix matrix run`, as the other stores do; leave it out, "
            "or join what was proven with `unfix report --proofs --merge …`"
        )
    newest = max(whole, key=lambda run: run.started)
    alike = [run for run in whole if (run.plan, run.of) == (newest.plan, newest.of)]
    by_number = {run.number: run for run in sorted(alike, key=lambda run: run.started)}
    return list(by_number.values())


def merge_shards(parts: Sequence[ShardPart]) -> MatrixRun:
    """All of them as one; whatever is absent, doubled or of another plan is an error."""
    parts = _deduplicate_parts(parts)
    first = parts[0].run
    if len(parts) == 1 and first.of == 1:
        return first
    _check_one_plan(parts)
    _check_shard_numbers(parts)
    cells = _merge_cells(parts)
    ordered = sorted((part.run for part in parts), key=lambda run: run.number)
    return msgspec.structs.replace(
        first,
        id="+".join(run.id for run in ordered),
        started=min(run.started for run in ordered),
        status="finished" if all(run.status == "finished" for run in ordered) else "stopped",
        seconds=max(run.seconds for run in ordered),
        command=ordered[0].command,
        where=f"{len(ordered)} shards",
        number=1,
        of=1,
        notes=list(dict.fromkeys(note for run in ordered for note in run.notes)),
        cells=cells,
    )


def _deduplicate_parts(parts: Sequence[ShardPart]) -> list[ShardPart]:
    """The same run in two stores is one run: one of them has taken the other in before."""
    found: dict[str, ShardPart] = {}
    for part in parts:
        known = found.get(part.run.id)
        if known is None or _count_done(part.run) > _count_done(known.run):
            found[part.run.id] = part
    return list(found.values())


def _count_done(run: MatrixRun) -> int:
    return sum(cell.outcome is not None for cell in run.cells)


def _check_one_plan(parts: Sequence[ShardPart]) -> None:
    plans: dict[tuple[str, int], list[ShardPart]] = {}
    for part in parts:
        plans.setdefault((part.run.plan, part.run.of), []).append(part)
    if len(plans) > 1:
        told = "; ".join(
            f"{', '.join(part.source for part in those)}: plan {plan} in {of}"
            for (plan, of), those in plans.items()
        )
        raise UnfixError(
            f"these are shards of different plans: {told}; "
            "run all shards from the same matrix file and with the same number of shards"
        )


def _check_shard_numbers(parts: Sequence[ShardPart]) -> None:
    of = parts[0].run.of
    numbers = Counter(part.run.number for part in parts)
    doubled = [number for number, count in numbers.items() if count > 1]
    if doubled:
        told = "; ".join(
            f"{number}/{of} in {' and in '.join(p.source for p in parts if p.run.number == number)}"
            for number in sorted(doubled)
        )
        raise UnfixError(f"a shard is there twice: {told}; leave one of them out")
    absent = [f"{number}/{of}" for number in range(1, of + 1) if number not in numbers]
    if absent:
        words = "shards are" if len(absent) > 1 else "a shard is"
        raise UnfixError(
            f"{words} absent: {', '.join(absent)}; run `unfix matrix run {parts[0].run.file} "
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


_SPLIT_HINT = (
    "the machines did not split the plan alike; give all of them the same --costs, or none"
)
