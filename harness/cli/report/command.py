"""`unfix report`: shows a stored run, or several joined, as a table, a page or data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import options, run_lookup, run_output
from harness.cli.commands import KINDS
from harness.cli.report import history
from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus
from harness.store.prove.table import ProveTable

if TYPE_CHECKING:
    from harness.store.database import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="ids, or how they begin; `--list` shows those of every kind (default: the newest run)",
    )
    parser.add_argument("--list", action="store_true", help="the runs of the store, a line each")
    parser.add_argument("--store", type=Path, metavar="FILE", help="another store than .unfix's")
    parser.add_argument(
        "--merge",
        nargs="+",
        default=[],
        type=Path,
        metavar="STORE",
        help="take the runs of other machines' stores in, and report them together",
    )
    parser.add_argument(
        "--proofs",
        action="store_true",
        help="of --merge: what was proven, though the stores hold matrix runs as well",
    )
    parser.add_argument(
        "--index", type=Path, metavar="DIR", help="one page that leads to all pages of a folder"
    )
    history.add_arguments(parser)
    run_output.add_arguments(parser)
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="of a review: for code scanning")
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    from harness.store.database import Store

    history.check_arguments(arguments)
    if arguments.index is not None:
        return _write_index(arguments.index)
    # On the first night there is no store to merge into.
    is_first = arguments.since is not None and bool(arguments.merge)
    store = Store(arguments.store, create=is_first or arguments.store is None)
    with store.explain_content():
        return _report_stored(store, arguments)


def _report_stored(store: Store, arguments: argparse.Namespace) -> int:
    from harness.cli.matrix import stored_runs

    if arguments.since is not None:
        return history.report_history(arguments, store)
    if not arguments.list and (joined := stored_runs.find_requested_run(store, arguments)):
        return run_output.write_and_print_run(KINDS["matrix"], joined, arguments)
    names = [
        *arguments.runs,
        *(name for other in arguments.merge for name in run_lookup.merge_store(store, other)),
    ]
    if arguments.list:
        return _print_runs(store, arguments.json)
    for name in names:
        if found := run_lookup.find_run(store, name):
            if len(names) > 1:
                raise UnfixError(f"{found[0].noun} is shown by itself: name it alone")
            return run_output.write_and_print_run(*found, arguments)
    if not names:
        kind, newest = run_lookup.find_newest_run(store) or (KINDS["prove"], None)
        if kind is not KINDS["prove"]:
            whole = kind.open_table(store).load_whole(newest)
            return run_output.write_and_print_run(kind, whole, arguments)
    return _report_proofs(store, names or [ProveTable(store).find_latest().id], arguments)


def _write_index(folder: Path) -> int:
    """Write one page with links to all pages and issues of a folder."""
    from reports import index

    if not folder.is_dir():
        raise UnfixError(f"there is no folder {folder}")
    options.report_status(f"the page: {index.write_index(folder)}")
    return 0


def _report_proofs(store: Store, names: list[str], arguments: argparse.Namespace) -> int:
    """Report proofs and lifecycles, the runs of a kind joined: two tables, and one page."""
    from harness.store.prove.joined_runs import add_missing_shard_problems, join_runs

    runs = [ProveTable(store).get(name) for name in dict.fromkeys(names)]
    whole = []
    for kind in dict.fromkeys(run.kind for run in runs):
        alike = [run for run in runs if run.kind == kind]
        whole.append(join_runs(alike))
        add_missing_shard_problems(alike, whole[-1])
    return run_output.write_and_print_run(KINDS["prove"], whole, arguments)


def _print_runs(store: Store, as_json: bool) -> int:
    found = run_lookup.list_runs(store)
    if as_json:
        options.print_json([kind.to_list_row(run) for kind, run in found])
        return 0
    from rich.table import Column, Table
    from rich.text import Text

    # An id is copied into the next command: it is never cut.
    ids = Column("run", min_width=max((len(run.id) for _, run in found), default=0))
    table = Table(ids, "what", "started", "status", "", "", box=None, pad_edge=False)
    for kind, run in found:
        row = kind.to_list_row(run)
        cells = [row[name] for name in ("id", "kind", "started", "status")]
        verdict = "" if run.status is RunStatus.RUNNING else kind.describe_verdict(run)
        table.add_row(*map(Text, (*cells, verdict, row["summary"])))
    options.make_console().print(table)
    return 0
