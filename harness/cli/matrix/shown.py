"""What is shown and written of a matrix run, as it ends and by `report` again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harness import paths
from harness.cli import options, pages
from harness.errors import UnfixError

if TYPE_CHECKING:
    from harness.store.database import Store
    from harness.store.matrix.values import MatrixRun


def check(arguments: argparse.Namespace) -> None:
    """Before anything runs: what is asked for in vain is said at once."""
    if arguments.junit is not None:
        raise UnfixError("a matrix has no JUnit: there are --markdown, --record and --json")


def report(run: MatrixRun, arguments: argparse.Namespace) -> int:
    check(arguments)
    write(run, arguments)
    show(run, arguments)
    return run.exit_code


def asked_for(store: Store, arguments: argparse.Namespace) -> MatrixRun | None:
    """The matrix run that `report` was asked for, shards joined; None: it was not for one."""
    from harness.matrix.joining import Part, joined

    if arguments.proofs:
        return None
    named = [run for run in map(store.find_matrix, arguments.runs) if run]
    if named and len(named) < len(arguments.runs):
        raise UnfixError("a matrix run is shown by itself, or with the other shards of its plan")
    if not arguments.runs and not arguments.merge:
        return _newest(store)
    parts = [Part(run, str(store.file)) for run in named] + _shards(store, arguments.merge)
    if not parts:
        return None
    whole = joined(parts)
    for other in arguments.merge:
        store.merge(other)
    return whole


def _newest(store: Store) -> MatrixRun | None:
    """The newest matrix run, if nothing was proven since it ended: its cells prove, too."""
    runs = store.matrices()
    if not runs:
        return None
    proofs = store.runs()
    newest = store.with_cells(runs[-1])
    if proofs and proofs[-1].started > runs[-1].started and not _proves(newest):
        return None
    return newest


def _proves(run: MatrixRun) -> bool:
    return any(cell.command[:2] == ["unfix", "prove"] for cell in run.cells)


def _shards(store: Store, others: list[Path]) -> list[Any]:
    """What the other stores hold of a matrix; nothing if none of them holds any."""
    from harness.matrix.joining import Part, newest_shards
    from harness.store.database import Store

    held = []
    for other in others:
        if other.resolve() == store.file.resolve():
            raise UnfixError(f"{other} is this store itself")
        there = Store(other, make=False)
        held.append((str(other), there, there.matrices()))
    parts = []
    if any(runs for _, _, runs in held):
        for source, there, runs in held:
            parts += [Part(there.with_cells(run), source) for run in newest_shards(runs, source)]
    for _, there, _ in held:
        there.close()
    return parts


def default_page(run: MatrixRun) -> Path:
    """One for each run: the next one does not replace what somebody has open."""
    name = run.id if len(run.id) < 100 else f"{run.id.partition('+')[0]}-joined"
    return paths.workspace() / "reports" / "out" / f"{name}.html"


def write(run: MatrixRun, arguments: argparse.Namespace) -> None:
    """The files that were asked for, and the page in any case."""
    pages.find_reports()
    from reports.matrix import markdown, page

    pages.write_one(
        arguments,
        default_page(run),
        lambda file: page.write(run, file),
        lambda: markdown.text(run),
        lambda: to_json(run),
    )


def show(run: MatrixRun, arguments: argparse.Namespace) -> None:
    if arguments.json:
        options.print_json(to_json(run))
        return
    pages.find_reports()
    from reports.matrix import terminal

    terminal.show(run, options.console())


def to_json(run: MatrixRun) -> dict[str, Any]:
    """All of it, with what it comes to."""
    data: dict[str, Any] = msgspec.to_builtins(run)
    for cell, plain in zip(run.cells, data["cells"], strict=True):
        plain |= {"outcome": cell.word, "seconds": cell.seconds}
    counts = {str(word): count for word, count in run.counts.items()}
    return {**data, "counts": counts, "green": run.green, "problems": run.problems}


def as_listed(run: MatrixRun) -> dict[str, Any]:
    """One line of `report --list`."""
    counts = {str(word): count for word, count in run.counts.items()}
    told = ", ".join(f"{count} {word}" for word, count in counts.items()) or "no cells"
    share = f" {run.number}/{run.of}" if run.of > 1 else ""
    return {
        "id": run.id,
        "kind": "matrix",
        "name": run.name,
        "plan": run.plan,
        "shard": f"{run.number}/{run.of}",
        "started": run.started,
        "status": run.status,
        "seconds": run.seconds,
        "counts": counts,
        "green": run.green,
        "summary": f"{run.name}{share}: {told}",
        "command": run.command,
    }
