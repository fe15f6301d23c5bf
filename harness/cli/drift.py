"""`unfix drift`: every toggle on every release, read from sources alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import options
from harness.drift import Drift, survey
from harness.releases import having, managed, sources

if TYPE_CHECKING:
    from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="TOGGLE", help="ids, families or globs")
    parser.add_argument(
        "--release", action="append", default=[], metavar="R", help="only this managed release"
    )
    parser.add_argument(
        "--from",
        dest="places",
        nargs="+",
        default=[],
        type=Path,
        metavar="PATH",
        help="wheels, checkouts or installed folders to read instead",
    )
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    catalogue = options.catalogue(arguments)
    # `--from` takes all that follows: what is no path there was meant as a toggle.
    places = [place for place in arguments.places if place.exists() or place.suffix == ".whl"]
    names = arguments.names + [str(p) for p in arguments.places if p not in places]
    toggles = catalogue.select_all(names) if names else list(catalogue)
    trees = [sources.open_tree(place) for place in places]
    named = [managed.get(name) for name in arguments.release]
    if named or not trees:
        trees += having.read(named or managed.all_releases(), options.say)
    trees.sort(key=lambda tree: (tree.version is None, tree.version or 0))
    drift = survey(toggles, trees, named=bool(names))
    if arguments.json:
        options.print_json(drift.as_data())
    else:
        show(drift, options.console())
    return 1 if drift.stale else 0


MARKS = {
    "fixed": ("fixed", "fix", "green"),
    "buggy": ("BUGGY", "BUG", "yellow"),
    "absent": ("·", "·", "dim"),
    "outside": ("-", "-", "dim"),
    "stale": ("STALE", "!!!", "bold red"),
    "applies": ("applies", "ok", "green"),
    "broken": ("BROKEN", "BRK", "bold red"),
}
FULL_WIDTH = 118


def show(drift: Drift, out: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    narrow = out.width < FULL_WIDTH and len(drift.columns) > 3
    grid = Table(box=None, pad_edge=False, padding=(0, 0 if narrow else 1))
    grid.add_column("toggle", no_wrap=True)
    for column in drift.columns:
        name = column.name.removeprefix("0.5") if narrow else column.name
        grid.add_column(name, justify="center", no_wrap=True, min_width=4)

    def row(title: str, states: list[str]) -> None:
        cells = (MARKS[state] for state in states)
        grid.add_row(title, *(Text(short if narrow else full, style=s) for full, short, s in cells))

    for toggle in drift.toggles:
        states = [
            "outside" if toggle.id in column.outside else column.states[toggle.id]
            for column in drift.columns
        ]
        row(toggle.id, states)
    numbers = sorted({number for column in drift.columns for number in column.upstream})
    if numbers:
        grid.add_row()
        grid.add_row(Text("SGLang's own reverts", style="bold"))
    for number in numbers:
        row(number, [column.upstream.get(number, "absent") for column in drift.columns])
    out.print(grid)
    for column in drift.columns:
        for finding in column.stale:
            out.print()
            out.print(
                Text(f"STALE {finding.toggle.id} on {column.name}: ", style="bold red")
                + Text(finding.problem, style="not bold")
            )
            if finding.nearest:
                out.print(Text(finding.nearest), soft_wrap=True)
    out.print()
    out.print(drift.summary())
