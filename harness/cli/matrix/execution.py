"""`unfix matrix run`: from a planned file to cells that are run, kept and shown."""

from __future__ import annotations

import argparse
import datetime
import secrets
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from harness.cli import options, run_kinds, run_output
from harness.core import machine, paths
from harness.core.errors import UnfixError

if TYPE_CHECKING:
    from harness.runs.matrix.cell_plan import MatrixCell, MatrixPlan
    from harness.runs.matrix.cell_scheduler import CellExecutor, CellScheduler
    from harness.store.database import Store
    from harness.store.matrix.values import CellAttempt, MatrixRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a matrix file")
    parser.add_argument("--shard", metavar="I/N", help="only this share of the cells")
    parser.add_argument(
        "--costs",
        type=Path,
        metavar="STORE",
        help="split shards by the seconds of this store, the same on every machine "
        "(default: all cells count alike)",
    )
    parser.add_argument(
        "--cell", action="append", default=[], metavar="ID", help="only this cell, by its identity"
    )
    parser.add_argument("--on", choices=("local", "ray"), default="local", help="where cells run")
    parser.add_argument(
        "--address",
        metavar="A",
        help="a running Ray cluster, as HOST:PORT (default: RAY_ADDRESS, else one of its own)",
    )
    parser.add_argument(
        "--ship",
        action="store_true",
        help="bring this checkout and its packages to nodes that have Ray alone",
    )
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="cells at a time on a machine")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the newest run of this very plan"
    )
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first that fails")
    parser.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="run a cell that failed so many times again; if it then passes it is flaky, not green",
    )
    run_output.add_arguments(parser)
    options.add_json(parser)


def run_matrix(arguments: argparse.Namespace) -> int:
    from harness.runs.matrix import plan_builder
    from harness.store.database import Store

    run_output.check_outputs(run_kinds.MATRIX, arguments)
    _check_numbers(arguments)
    store = Store()
    plan: MatrixPlan = plan_builder.plan_matrix(arguments.file, store.matrix.load_median_seconds())
    cells, number, of = _choose_cells(plan, arguments)
    going = _make_or_resume_run(store, arguments, plan, cells, number, of)
    options.report_status(_describe_run(going, cells, arguments))
    stopped = _run_until_stopped(store, going, cells, arguments)
    done = store.matrix.find(going.id)
    assert done is not None
    code = run_output.write_and_print_run(run_kinds.MATRIX, done, arguments)
    return 130 if stopped else code


def _check_numbers(arguments: argparse.Namespace) -> None:
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UnfixError(f"--jobs {arguments.jobs} is too small")
    if arguments.retries < 0:
        raise UnfixError(f"--retries {arguments.retries} is too small")
    if arguments.address and arguments.on != "ray":
        raise UnfixError("--address names a Ray cluster: it goes with --on ray")
    if arguments.ship and arguments.on != "ray":
        raise UnfixError("--ship brings unfix to a cluster's nodes: it goes with --on ray")
    if arguments.cell and (arguments.shard or arguments.resume):
        raise UnfixError("--cell runs cells by themselves: leave out --shard and --resume")
    if arguments.costs and not arguments.shard:
        raise UnfixError("--costs is for splitting: it goes with --shard")


# What is run


def _choose_cells(
    plan: MatrixPlan, arguments: argparse.Namespace
) -> tuple[list[MatrixCell], int, int]:
    """The cells, and which shard they are."""
    if arguments.cell:
        return [_find_cell(plan, name) for name in dict.fromkeys(arguments.cell)], 1, 1
    if not arguments.shard:
        return plan.cells, 1, 1
    from harness.runs.matrix import shards
    from harness.store.database import Store

    number, of = _parse_shard(arguments.shard)
    costs: dict[str, float] = {}
    if arguments.costs:
        measured = Store(arguments.costs, create=False)
        costs = measured.matrix.load_median_seconds()
        measured.close()
    mine = set(shards.select_shard(plan, costs, number, of).cells)
    return [cell for cell in plan.cells if cell.identity in mine], number, of


def _parse_shard(words: str) -> tuple[int, int]:
    number, _, of = words.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise UnfixError(f"--shard {words} is no share: it is I/N, from 1/N to N/N")
    return int(number), int(of)


def _find_cell(plan: MatrixPlan, name: str) -> MatrixCell:
    found = [cell for cell in plan.cells if cell.identity.startswith(name)]
    if len(found) != 1:
        how = "more than one cell" if found else "no cell"
        raise UnfixError(
            f"{plan.name} has {how} {name}: `unfix matrix plan` shows the identities of its cells"
        )
    return found[0]


def _make_or_resume_run(
    store: Store,
    arguments: argparse.Namespace,
    plan: MatrixPlan,
    cells: list[MatrixCell],
    shard_number: int,
    shard_count: int,
) -> MatrixRun:
    from harness.runs.matrix import shards
    from harness.store.matrix.values import MatrixRun

    if arguments.resume:
        found = shards.find_resumable_run(store.matrix.list_runs(), plan, shard_number, shard_count)
        going = store.matrix.load_whole(found)
        shards.check_same_cells(going, cells)
        going = msgspec.structs.replace(going, where=arguments.on, notes=[])
    else:
        now = datetime.datetime.now(datetime.UTC)
        going = MatrixRun(
            id=f"matrix-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
            name=plan.name,
            file=str(arguments.file),
            plan=plan.digest,
            total=len(plan.cells),
            axes=plan.axes,
            started=now.isoformat(timespec="milliseconds"),
            command=run_output.get_recorded_command(),
            commit=machine.describe_commit(),
            machine=machine.describe_machine(),
            where=arguments.on,
            number=shard_number,
            of=shard_count,
            only=[cell.identity for cell in cells] if arguments.cell else [],
            cells=shards.make_unrun_cells(cells),
        )
    return going


def _describe_run(
    matrix_run: MatrixRun, cells: list[MatrixCell], arguments: argparse.Namespace
) -> str:
    from harness.core.wording import format_count

    share = f", shard {matrix_run.number}/{matrix_run.of}" if matrix_run.of > 1 else ""
    done = sum(cell.is_done for cell in matrix_run.cells)
    left = f", {done} of them done before" if arguments.resume else ""
    where = "a Ray cluster" if arguments.on == "ray" else "this machine"
    return f"{matrix_run.name}: {format_count(len(cells), 'cell')} on {where}{share}{left}; run {matrix_run.id}"


# Running it


def _run_until_stopped(
    store: Store, matrix_run: MatrixRun, cells: list[MatrixCell], arguments: argparse.Namespace
) -> bool:
    """Run what is left; whether somebody stopped it."""
    from harness.cli.matrix.progress import MatrixProgress
    from harness.runs.matrix.cell_scheduler import CellScheduler, RetryRules, RunLocation

    executor = _make_executor(arguments)
    begun = time.monotonic()
    before = matrix_run.seconds
    whole = False
    signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        store.matrix.begin(matrix_run)
        left = {cell.identity: cell.attempts for cell in matrix_run.cells if not cell.is_done}
        place = RunLocation(
            matrix_run.id, paths.state_folder() / "matrix" / matrix_run.id, Path.cwd()
        )
        with MatrixProgress(len(cells), len(cells) - len(left), cells) as progress:

            def keep(ended: list[tuple[str, CellAttempt]]) -> None:
                store.matrix.save_attempts(matrix_run.id, ended)
                progress.report_attempts(ended)

            wanted = [cell for cell in cells if cell.identity in left]
            rules = RetryRules(arguments.retries, arguments.fail_fast)
            run = CellScheduler(wanted, executor, place, rules, keep, left)
            whole = run.run()
            matrix_run.notes = describe_missing_resources(run)
    except KeyboardInterrupt:
        return True
    finally:
        matrix_run.seconds = before + time.monotonic() - begun
        matrix_run.status = "finished" if whole else "stopped"
        try:
            store.matrix.end(matrix_run)
        finally:
            executor.close()
    return False


def describe_missing_resources(running: CellScheduler) -> list[str]:
    return [f"{why}: the cells that need it are not-ready" for why in running.shortages.values()]


def _make_executor(arguments: argparse.Namespace) -> CellExecutor:
    if arguments.on == "local":
        from harness.runs.matrix.local_executor import LocalExecutor

        return LocalExecutor(arguments.jobs)
    try:
        from harness.runs.matrix.ray_executor import RayExecutor
    except ImportError as error:
        from harness.core.errors import NotReadyError

        raise NotReadyError("Ray is not installed here: pip install 'unfix[ray]'") from error
    return RayExecutor(arguments.address, arguments.jobs, ship=arguments.ship)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
