"""`unfix matrix plan` and `unfix matrix shards`: print a plan and its shards."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from harness.cli import options
from harness.core.wording import format_count, format_duration
from harness.runs.matrix import plan_builder, shards
from harness.runs.matrix.cell_plan import MatrixCell, MatrixPlan, PlanShard, SeedConfiguration
from harness.store.matrix.table import MatrixTable

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

MAX_LISTED_CELLS = 60  # without --wide
SEED_STATE_STYLES = {"whole": "green", "part": "yellow", "out": "red"}


def run_plan(arguments: argparse.Namespace) -> int:
    plan = plan_builder.plan_matrix(arguments.file, _read_cell_seconds(None))
    if arguments.json:
        options.print_json(msgspec.to_builtins(plan))
    else:
        _print_plan(plan, arguments.wide)
    return 0


def run_shards(arguments: argparse.Namespace) -> int:
    costs = _read_cell_seconds(arguments.costs) if arguments.costs else {}
    plan = plan_builder.plan_matrix(arguments.file)
    plan_shards = shards.split_plan(plan, costs, arguments.of)
    if arguments.github:
        print(json.dumps(make_github_matrix(plan_shards, costs)))
    elif arguments.json:
        data = {"plan": plan.digest, "imbalance": shards.compute_imbalance(plan_shards)}
        options.print_json(data | {"shards": msgspec.to_builtins(plan_shards)})
    else:
        _print_shards(plan, plan_shards, costs)
    return 0


def make_github_matrix(
    plan_shards: list[PlanShard], measured_seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Make the value of `strategy: matrix: ${{ fromJSON(…) }}`; seconds need measured cells."""
    return {
        "include": [
            {
                "shard": shard.number,
                "of": shard.of,
                "share": f"{shard.number}/{shard.of}",
                "plan": shard.plan,
                "cells": len(shard.cells),
                "seconds": round(shard.seconds) if measured_seconds else None,
            }
            for shard in plan_shards
        ]
    }


def _read_cell_seconds(file: Path | None) -> dict[str, float]:
    """Read the seconds of cells in stored runs, from the named store or else the default one."""
    from harness.store.database import Store, find_default_store

    if file is None and not find_default_store().is_file():
        return {}
    return MatrixTable(Store(file, create=False)).load_median_seconds()


def _print_plan(plan: MatrixPlan, wide: bool) -> None:
    console = options.make_console()
    tables = [
        _make_coverage_table(plan),
        _make_constraint_table(plan),
        _make_seed_table(plan),
        _make_cell_table(plan, wide),
    ]
    for table in tables:
        if table.row_count:
            console.print(table)
            console.print()
    left = len(plan.cells) - MAX_LISTED_CELLS
    if left > 0 and not wide:
        console.print(
            f"and {format_count(left, 'further cell')}: --wide shows them, with the commands"
        )
    console.print(format_summary(plan), soft_wrap=True)


def format_summary(plan: MatrixPlan) -> str:
    tuples = sum(group.tuples for group in plan.coverage)
    covered = sum(group.covered for group in plan.coverage)
    reasons = {tuple(sorted(cell.values.items())): cell.why for cell in plan.cells}
    fixed = sum(reason != plan_builder.COVERING_REASON for reason in reasons.values())
    return (
        f"{plan.name}: {format_count(len(plan.cells), 'cell')} in "
        f"{format_count(len(reasons), 'configuration')}, {fixed} of them fixed; "
        f"{covered} of {tuples} tuples covered; one after the other {_format_total_time(plan)}; "
        f"planned in {plan.seconds:.1f} s; plan {plan.digest}"
    )


def _format_total_time(plan: MatrixPlan) -> str:
    if plan.estimated is None:
        return "unknown, as none of them ran yet"
    unknown = sum(cell.seconds is None for cell in plan.cells)
    rest = f", {format_count(unknown, 'cell')} by the mean" if unknown else ""
    return f"{format_duration(plan.estimated)} by stored runs{rest}"


def _make_table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _to_plain_text(text: object, style: str = "") -> Any:
    from rich.text import Text

    return Text(str(text), style=style)


def _make_coverage_table(plan: MatrixPlan) -> Table:
    table = _make_table("covered", "axes at a time", "tuples", "of", "cannot be")
    for group in plan.coverage:
        style = "green" if group.covered == group.tuples else "red"
        axes = "all axes" if group.axes == list(plan.axes) else ", ".join(group.axes)
        counts = [
            _to_plain_text(count, style) for count in (group.covered, group.tuples, group.forbidden)
        ]
        table.add_row(_to_plain_text(axes), str(group.strength), *counts)
    return table


def _make_constraint_table(plan: MatrixPlan) -> Table:
    table = _make_table("constraint", "forbids", "because")
    for one in plan.dropped:
        forbids = format_count(one.tuples, "tuple")
        if one.fixed:
            forbids += f", {'; '.join(one.fixed)}"
        table.add_row(
            _to_plain_text(one.constraint), _to_plain_text(forbids), _to_plain_text(one.because)
        )
    return table


def _make_seed_table(plan: MatrixPlan) -> Table:
    table = _make_table("seed", "in", "as", "lacking")
    for seed in plan.seeds:
        table.add_row(
            _to_plain_text(f"{seed.pr} {seed.title}"),
            _to_plain_text(seed.state, SEED_STATE_STYLES[seed.state]),
            _to_plain_text(_format_values(seed)),
            _to_plain_text("; ".join(seed.lacking)),
        )
    return table


def _format_values(assignment: MatrixCell | SeedConfiguration) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in assignment.values.items())


def _make_cell_table(plan: MatrixPlan, wide: bool) -> Table:
    """Make a table with a column per axis with several values, or per axis with --wide."""
    axes = [axis for axis, values in plan.axes.items() if wide or len(values) > 1]
    several = wide or len({cell.work for cell in plan.cells}) > 1
    table = _make_table("cell", *(["runs"] if several else []), *axes, "why")
    for column in ("needs", "seconds", "limit", "command") if wide else ():
        table.add_column(column, overflow="fold")
    for cell in plan.cells if wide else plan.cells[:MAX_LISTED_CELLS]:
        row = [cell.identity, *([cell.work] if several else [])]
        row += [cell.values.get(axis, "·") for axis in axes]
        row.append(cell.why)
        if wide:
            seconds = "unknown" if cell.seconds is None else f"{cell.seconds:.1f}"
            row += [_format_needs(cell), seconds, f"{cell.limit:g}", _format_command(cell)]
        table.add_row(*(_to_plain_text(word) for word in row))
    return table


def _format_needs(cell: MatrixCell) -> str:
    needs = cell.needs
    amounts = [f"{needs.cpus:g} CPU"]
    amounts += [f"{needs.gpus:g} {needs.gpu or 'GPU'}"] if needs.gpus else []
    amounts += [f"{amount:g} {name}" for name, amount in needs.custom.items()]
    return ", ".join(amounts)


def _format_command(cell: MatrixCell) -> str:
    import shlex

    variables = [f"{name}={shlex.quote(value)}" for name, value in cell.environment.items()]
    return " ".join([*variables, shlex.join(cell.command)])


def _print_shards(
    plan: MatrixPlan, plan_shards: list[PlanShard], measured_seconds: dict[str, float]
) -> None:
    console = options.make_console()
    table = _make_table("shard", "cells", "expected")
    for shard in plan_shards:
        expected = format_duration(shard.seconds) if measured_seconds else "unknown"
        table.add_row(f"{shard.number}/{shard.of}", str(len(shard.cells)), expected)
    console.print(table)
    console.print()
    measured = sum(cell.identity in measured_seconds for cell in plan.cells)
    console.print(
        f"{plan.name}: {format_count(len(plan.cells), 'cell')} over "
        f"{format_count(len(plan_shards), 'shard')}, {measured} of them measured; the slowest "
        f"takes {shards.compute_imbalance(plan_shards):.2f} times the mean; plan {plan.digest}",
        soft_wrap=True,
    )
