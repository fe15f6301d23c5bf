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

from harness import machine, paths
from harness.cli import kinds, options, pages
from harness.errors import UnfixError

if TYPE_CHECKING:
    from harness.matrix.running import Executor, Running
    from harness.matrix.values import Cell, Plan
    from harness.store.database import Store
    from harness.store.matrix.values import Attempt, MatrixRun


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
    pages.add_arguments(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from harness.matrix import planning
    from harness.store.database import Store

    pages.check(kinds.MATRIX, arguments)
    _numbers(arguments)
    store = Store()
    plan: Plan = planning.plan(arguments.file, store.matrix.seconds_by_identity())
    cells, number, of = _chosen(plan, arguments)
    going = _begun(store, arguments, plan, cells, number, of)
    options.say(_what(going, cells, arguments))
    stopped = _go(store, going, cells, arguments)
    done = store.matrix.find(going.id)
    assert done is not None
    code = pages.finish(kinds.MATRIX, done, arguments)
    return 130 if stopped else code


def _numbers(arguments: argparse.Namespace) -> None:
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


def _chosen(plan: Plan, arguments: argparse.Namespace) -> tuple[list[Cell], int, int]:
    """The cells, and which shard they are."""
    if arguments.cell:
        return [_named(plan, name) for name in dict.fromkeys(arguments.cell)], 1, 1
    if not arguments.shard:
        return plan.cells, 1, 1
    from harness.matrix import shards
    from harness.store.database import Store

    number, of = _share(arguments.shard)
    costs: dict[str, float] = {}
    if arguments.costs:
        measured = Store(arguments.costs, make=False)
        costs = measured.matrix.seconds_by_identity()
        measured.close()
    mine = set(shards.shard_of(plan, costs, number, of).cells)
    return [cell for cell in plan.cells if cell.identity in mine], number, of


def _share(words: str) -> tuple[int, int]:
    number, _, of = words.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise UnfixError(f"--shard {words} is no share: it is I/N, from 1/N to N/N")
    return int(number), int(of)


def _named(plan: Plan, name: str) -> Cell:
    found = [cell for cell in plan.cells if cell.identity.startswith(name)]
    if len(found) != 1:
        how = "more than one cell" if found else "no cell"
        raise UnfixError(
            f"{plan.name} has {how} {name}: `unfix matrix plan` shows the identities of its cells"
        )
    return found[0]


def _begun(
    store: Store,
    arguments: argparse.Namespace,
    plan: Plan,
    cells: list[Cell],
    number: int,
    of: int,
) -> MatrixRun:
    from harness.matrix import resuming
    from harness.store.matrix.values import MatrixRun

    if arguments.resume:
        found = resuming.find(store.matrix.all(), plan, number, of)
        going = store.matrix.whole(found)
        resuming.check(going, cells)
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
            command=pages.command(),
            commit=machine.commit(),
            machine=machine.told(),
            where=arguments.on,
            number=number,
            of=of,
            only=[cell.identity for cell in cells] if arguments.cell else [],
            cells=resuming.bare(cells),
        )
    return going


def _what(going: MatrixRun, cells: list[Cell], arguments: argparse.Namespace) -> str:
    from harness.store.matrix.values import counted

    share = f", shard {going.number}/{going.of}" if going.of > 1 else ""
    done = sum(cell.done for cell in going.cells)
    left = f", {done} of them done before" if arguments.resume else ""
    where = "a Ray cluster" if arguments.on == "ray" else "this machine"
    return f"{going.name}: {counted(len(cells), 'cell')} on {where}{share}{left}; run {going.id}"


# Running it


def _go(store: Store, going: MatrixRun, cells: list[Cell], arguments: argparse.Namespace) -> bool:
    """Run what is left; whether somebody stopped it."""
    from harness.cli.matrix.progress import Progress
    from harness.matrix.running import Place, Rules, Running

    executor = _executor(arguments)
    begun = time.monotonic()
    before = going.seconds
    whole = False
    signal.signal(signal.SIGTERM, _stop)
    try:
        store.matrix.begin(going)
        left = {cell.identity: cell.attempts for cell in going.cells if not cell.done}
        place = Place(going.id, paths.state() / "matrix" / going.id, Path.cwd())
        with Progress(len(cells), len(cells) - len(left), cells) as progress:

            def keep(ended: list[tuple[str, Attempt]]) -> None:
                store.matrix.attempts(going.id, ended)
                progress.ended(ended)

            wanted = [cell for cell in cells if cell.identity in left]
            rules = Rules(arguments.retries, arguments.fail_fast)
            run = Running(wanted, executor, place, rules, keep, left)
            whole = run.go()
            going.notes = notes(run)
    except KeyboardInterrupt:
        return True
    finally:
        going.seconds = before + time.monotonic() - begun
        going.status = "finished" if whole else "stopped"
        try:
            store.matrix.end(going)
        finally:
            executor.close()
    return False


def notes(run: Running) -> list[str]:
    return [f"{why}: the cells that need it are not-ready" for why in run.missing.values()]


def _executor(arguments: argparse.Namespace) -> Executor:
    if arguments.on == "local":
        from harness.matrix.local import Local

        return Local(arguments.jobs)
    try:
        from harness.matrix.on_ray import OnRay
    except ImportError as error:
        from harness.errors import NotReady

        raise NotReady("Ray is not installed here: pip install 'unfix[ray]'") from error
    return OnRay(arguments.address, arguments.jobs, ship=arguments.ship)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
