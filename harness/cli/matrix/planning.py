"""`unfix matrix plan` and `unfix matrix shards`: a plan, and its shares, as they are shown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from harness.cli import options
from harness.matrix import planning
from harness.matrix import shards as sharing
from harness.matrix.values import Cell, Plan, Seed, Shard

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

SHOWN = 60  # cells, unless all are asked for
STATES = {"whole": "green", "part": "yellow", "out": "red"}


def plan(arguments: argparse.Namespace) -> int:
    found = planning.plan(arguments.file, _seconds(None))
    if arguments.json:
        options.print_json(msgspec.to_builtins(found))
    else:
        _show(found, arguments.wide)
    return 0


def shards(arguments: argparse.Namespace) -> int:
    known = _seconds(arguments.costs) if arguments.costs else {}
    found = planning.plan(arguments.file)
    shares = sharing.shards_of(found, known, arguments.of)
    if arguments.github:
        print(json.dumps(github(shares, known)))
    elif arguments.json:
        data = {"plan": found.digest, "imbalance": sharing.imbalance(shares)}
        options.print_json(data | {"shards": msgspec.to_builtins(shares)})
    else:
        _show_shards(found, shares, known)
    return 0


def github(shares: list[Shard], known: Mapping[str, float]) -> dict[str, Any]:
    """What `strategy: matrix: ${{ fromJSON(…) }}` takes; without measured cells no seconds."""
    return {
        "include": [
            {
                "shard": shard.number,
                "of": shard.of,
                "share": f"{shard.number}/{shard.of}",
                "plan": shard.plan,
                "cells": len(shard.cells),
                "seconds": round(shard.seconds) if known else None,
            }
            for shard in shares
        ]
    }


def _seconds(file: Path | None) -> dict[str, float]:
    """What cells took in stored runs: of a store that is named, or of our own if there is one."""
    from harness.store.database import Store
    from harness.store.file import default_file

    if file is None and not default_file().is_file():
        return {}
    return Store(file, make=False).matrix.seconds_by_identity()


def _show(found: Plan, wide: bool) -> None:
    console = options.console()
    tables = [_coverage(found), _dropped(found), _seeds(found), _cells(found, wide)]
    for table in tables:
        if table.row_count:
            console.print(table)
            console.print()
    left = len(found.cells) - SHOWN
    if left > 0 and not wide:
        console.print(f"and {many(left, 'further cell')}: --wide shows them, with the commands")
    console.print(summary(found), soft_wrap=True)


def summary(found: Plan) -> str:
    tuples = sum(group.tuples for group in found.coverage)
    covered = sum(group.covered for group in found.coverage)
    cells = many(len(found.cells), "cell")
    configurations = len({tuple(sorted(cell.values.items())) for cell in found.cells})
    fixed = len(
        {tuple(sorted(c.values.items())) for c in found.cells if c.why != planning.COVERING}
    )
    return (
        f"{found.name}: {cells} in {many(configurations, 'configuration')}, {fixed} of them fixed; "
        f"{covered} of {tuples} tuples covered; one after the other {_long(found)}; "
        f"planned in {found.seconds:.1f} s; plan {found.digest}"
    )


def _long(found: Plan) -> str:
    if found.estimated is None:
        return "unknown, as none of them ran yet"
    told = sum(cell.seconds is not None for cell in found.cells)
    rest = "" if told == len(found.cells) else f", {len(found.cells) - told} cells by the mean"
    return f"{duration(found.estimated)} by stored runs{rest}"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _plain(text: object, style: str = "") -> Any:
    from rich.text import Text

    return Text(str(text), style=style)


def _coverage(found: Plan) -> Table:
    table = _table("covered", "axes at a time", "tuples", "of", "cannot be")
    for group in found.coverage:
        style = "green" if group.covered == group.tuples else "red"
        axes = "all axes" if group.axes == list(found.axes) else ", ".join(group.axes)
        numbers = (group.covered, group.tuples, group.forbidden)
        table.add_row(_plain(axes), str(group.strength), *(_plain(one, style) for one in numbers))
    return table


def _dropped(found: Plan) -> Table:
    table = _table("constraint", "forbids", "because")
    for one in found.dropped:
        forbids = many(one.tuples, "tuple")
        if one.fixed:
            forbids += f", {'; '.join(one.fixed)}"
        table.add_row(_plain(one.constraint), _plain(forbids), _plain(one.because))
    return table


def _seeds(found: Plan) -> Table:
    table = _table("seed", "in", "as", "lacking")
    for seed in found.seeds:
        table.add_row(
            _plain(f"{seed.pr} {seed.title}"),
            _plain(seed.state, STATES[seed.state]),
            _plain(_values(seed)),
            _plain("; ".join(seed.lacking)),
        )
    return table


def _values(of: Cell | Seed) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in of.values.items())


def _cells(found: Plan, wide: bool) -> Table:
    """A column for each axis; one that has a single value says nothing."""
    axes = [axis for axis, values in found.axes.items() if wide or len(values) > 1]
    several = wide or len({cell.work for cell in found.cells}) > 1
    table = _table("cell", *(["runs"] if several else []), *axes, "why")
    for column in ("needs", "seconds", "limit", "command") if wide else ():
        table.add_column(column, overflow="fold")
    for cell in found.cells if wide else found.cells[:SHOWN]:
        row = [cell.identity, *([cell.work] if several else [])]
        row += [cell.values.get(axis, "·") for axis in axes]
        row.append(cell.why)
        if wide:
            row += [_needs(cell), _expected(cell), f"{cell.limit:g}", _command(cell)]
        table.add_row(*(_plain(word) for word in row))
    return table


def _needs(cell: Cell) -> str:
    needs = cell.needs
    said = [f"{needs.cpus:g} CPU"]
    said += [f"{needs.gpus:g} {needs.gpu or 'GPU'}"] if needs.gpus else []
    said += [f"{amount:g} {name}" for name, amount in needs.custom.items()]
    return ", ".join(said)


def _expected(cell: Cell) -> str:
    return "unknown" if cell.seconds is None else f"{cell.seconds:.1f}"


def _command(cell: Cell) -> str:
    import shlex

    variables = [f"{name}={shlex.quote(value)}" for name, value in cell.environment.items()]
    return " ".join([*variables, shlex.join(cell.command)])


def _show_shards(found: Plan, shares: list[Shard], known: dict[str, float]) -> None:
    console = options.console()
    table = _table("shard", "cells", "expected")
    for shard in shares:
        expected = duration(shard.seconds) if known else "unknown"
        table.add_row(f"{shard.number}/{shard.of}", str(len(shard.cells)), expected)
    console.print(table)
    console.print()
    told = sum(cell.identity in known for cell in found.cells)
    console.print(
        f"{found.name}: {many(len(found.cells), 'cell')} over {many(len(shares), 'shard')}, "
        f"{told} of them measured; the slowest takes {sharing.imbalance(shares):.2f} times "
        f"the mean; plan {found.digest}",
        soft_wrap=True,
    )
