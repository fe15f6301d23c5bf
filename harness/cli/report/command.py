"""`unfix report`: any stored run again, or several together, as a table, a page or data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import options, pages
from harness.cli.bisect import shown as search_pages
from harness.cli.eval import shown
from harness.cli.matrix import shown as matrix_pages
from harness.cli.mutate import shown as mutate_pages
from harness.cli.report import history, index
from harness.errors import UnfixError

if TYPE_CHECKING:
    from harness.store.database import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="ids, or how they begin (default: the newest)"
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
    pages.add_arguments(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from harness.store.database import Store
    from harness.store.prove.together import say_what_is_missing, together

    history.check(arguments)
    if arguments.index is not None:
        return index.run(arguments.index)
    # The first of all nights has no store of earlier ones to be merged into.
    first = arguments.since is not None and bool(arguments.merge)
    store = Store(arguments.store, make=first or arguments.store is None)
    if arguments.since is not None:
        return history.run(arguments, store)
    names = list(arguments.runs)
    if not arguments.list and (joined := matrix_pages.asked_for(store, arguments)):
        return matrix_pages.report(joined, arguments)
    for other in arguments.merge:
        names += store.merge(other)
    if arguments.list:
        return _list(store, arguments.json)
    if searches := [search for search in map(store.find_search, names) if search]:
        if len(names) > 1:
            raise UnfixError("a search is shown by itself: name it alone")
        search_pages.write(searches[0], arguments)
        search_pages.show(searches[0], arguments)
        return 0 if searches[0].found else 1
    if evaluations := [one for one in map(store.find_evaluation, names) if one]:
        if len(names) > 1:
            raise UnfixError("an evaluation is shown by itself: name it alone")
        shown.check(arguments)
        shown.write(evaluations[0], arguments)
        shown.show(evaluations[0], arguments)
        return 0 if evaluations[0].green else 1
    if mutations := [one for one in map(store.find_mutation, names) if one]:
        if len(names) > 1:
            raise UnfixError("a mutation run is shown by itself: name it alone")
        mutate_pages.write(mutations[0], arguments)
        mutate_pages.show(mutations[0], arguments)
        return 0 if mutations[0].green else 1
    if not names:
        names = [store.newest().id]
    runs = [store.load(name) for name in dict.fromkeys(names)]
    # A proof and a lifecycle are two tables, and one page.
    kinds = dict.fromkeys(run.kind for run in runs)
    whole = []
    for kind in kinds:
        alike = [run for run in runs if run.kind == kind]
        whole.append(together(alike))
        say_what_is_missing(alike, whole[-1])
    pages.write(whole, arguments)
    if arguments.json:
        data = [pages.as_data(run) for run in whole]
        options.print_json(data[0] if len(data) == 1 else data)
    else:
        pages.show(whole)
    return 0 if all(run.green for run in whole) else 1


def _list(store: Store, as_json: bool) -> int:
    runs = [store.load(run.id) for run in store.runs()]
    searches = store.searches()
    evaluations = store.evaluations()
    matrices = [store.with_cells(run) for run in store.matrices()]
    mutations = [store.with_fates(run) for run in store.mutations()]
    if as_json:
        listed: list[dict[str, Any]] = [
            {
                "id": run.id,
                "kind": run.kind,
                "started": run.started,
                "status": run.status,
                "seconds": run.seconds,
                "counts": run.counts,
                "green": run.green,
                "command": run.command,
            }
            for run in runs
        ]
        listed += [
            {
                "id": search.id,
                "kind": f"bisect {search.kind}",
                "started": search.started,
                "status": search.status,
                "seconds": search.seconds,
                "verdict": search.verdict,
                "summary": search.summary,
                "command": search.command,
            }
            for search in searches
        ]
        listed += [shown.as_listed(one) for one in evaluations]
        listed += [matrix_pages.as_listed(one) for one in matrices]
        listed += [mutate_pages.as_listed(one) for one in mutations]
        options.print_json(listed)
        return 0
    from rich.table import Table
    from rich.text import Text

    table = Table("run", "what", "started", "status", "", "", box=None, pad_edge=False)
    for run in runs:
        counts = ", ".join(f"{count} {name}" for name, count in run.counts.items())
        green = "green" if run.green else "red"
        table.add_row(run.id, run.kind, run.started, run.status, green, counts)
    for search in searches:
        table.add_row(
            *(search.id, f"bisect {search.kind}", search.started, search.status, search.verdict),
            Text(search.summary),
        )
    others = [
        *map(shown.as_listed, evaluations),
        *map(matrix_pages.as_listed, matrices),
        *map(mutate_pages.as_listed, mutations),
    ]
    for row in others:
        green = "green" if row["green"] else "red"
        table.add_row(
            *(Text(row[name]) for name in ("id", "kind", "started", "status")),
            green,
            Text(row["summary"]),
        )
    options.console().print(table)
    return 0
