"""The execution of `unfix matrix run`: the arguments, the progress, and the report of a run."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import options, run_output
from harness.cli.commands import KINDS
from harness.cli.process_cleanup import raise_interrupt
from harness.store.matrix.table import MatrixTable

if TYPE_CHECKING:
    from harness.runs.matrix.matrix_run import MatrixRunRequest


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
        help="install this checkout and its packages on nodes that have Ray alone",
    )
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="cells at a time on a machine")
    parser.add_argument(
        "--resume", action="store_true", help="continue the newest run of this very plan"
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
    from harness.cli.matrix.progress import MatrixProgress
    from harness.core.wording import format_count
    from harness.runs.matrix import matrix_run, plan_builder
    from harness.store.database import Store

    run_output.check_outputs(KINDS["matrix"], arguments)
    request = _make_request(arguments)
    store = Store()
    plan = plan_builder.plan_matrix(request.file, MatrixTable(store).load_median_seconds())
    cells = matrix_run.choose_cells(plan, request)
    command = run_output.get_recorded_command()
    run = matrix_run.begin_or_resume(store, request, plan, cells, command)
    done_count = sum(cell.is_done for cell in run.cells)
    options.report_status(
        f"{run.name}: {format_count(len(cells), 'cell')} "
        f"on {'a Ray cluster' if request.on_ray else 'this machine'}"
        + (f", shard {run.number}/{run.of}" if run.of > 1 else "")
        + (f", {done_count} of them done before" if request.resume else "")
        + f"; run {run.id}"
    )
    signal.signal(signal.SIGTERM, raise_interrupt)
    is_interrupted = False
    try:
        with MatrixProgress(len(cells), done_count, cells) as progress:
            matrix_run.execute_run(store, run, cells, request, progress.report_attempts)
    except KeyboardInterrupt:
        is_interrupted = True
    stored_run = MatrixTable(store).find(run.id)
    assert stored_run is not None
    code = run_output.write_and_print_run(KINDS["matrix"], stored_run, arguments)
    return 130 if is_interrupted else code


def _make_request(arguments: argparse.Namespace) -> MatrixRunRequest:
    from harness.runs.matrix.cell_scheduler import RetryRules
    from harness.runs.matrix.matrix_run import MatrixRunRequest

    return MatrixRunRequest(
        file=arguments.file,
        shard=arguments.shard or "",
        costs=arguments.costs,
        cells=tuple(arguments.cell),
        on_ray=arguments.on == "ray",
        address=arguments.address,
        ship=arguments.ship,
        jobs=arguments.jobs,
        resume=arguments.resume,
        rules=RetryRules(arguments.retries, arguments.fail_fast),
    )
