"""`unfix drift`: every toggle on every release, read from sources alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import options
from harness.core.errors import CommandLineError
from harness.fixes.drift import DriftSurvey, survey_drift
from harness.fixes.matching import nearest_code
from harness.fixes.registry.schema import Toggle
from harness.releases import managed_releases, provisioning, source_trees
from harness.releases.source_trees import SourceTree
from harness.store.prove import recorded_proofs

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
    parser.add_argument(
        "--mend", action="store_true", help="propose a variant for each stale cell, as a diff"
    )
    parser.add_argument("--write", action="store_true", help="with --mend: put it into the file")
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    catalogue = options.load_catalogue(arguments)
    # `--from` takes all that follows: what is no path there was meant as a toggle.
    places = [place for place in arguments.places if place.exists() or place.suffix == ".whl"]
    meant = [str(place) for place in arguments.places if place not in places]
    options.split_names_and_paths(meant, arguments.usage)
    names = arguments.names + meant
    toggles = options.select_toggles_or_all(catalogue, names, arguments.usage)
    trees = [source_trees.open_tree(place) for place in places]
    named = [managed_releases.get_release(name) for name in arguments.release]
    if named or not trees:
        trees += provisioning.ensure_sources(
            named or managed_releases.list_releases(), options.report_status
        )
    trees.sort(key=lambda tree: (tree.version is None, tree.version or 0))
    if arguments.write and not arguments.mend:
        raise CommandLineError("--write goes with --mend", arguments.usage)
    if arguments.mend:
        return _mend_stale_cells(arguments, toggles, trees)
    drift = survey_drift(toggles, trees, only_named=bool(names))
    known = [release.name for release in managed_releases.list_releases()]
    proven = {
        toggle: [proof.describe(known) for proof in found]
        for toggle, found in recorded_proofs.load_proofs(known).items()
    }
    if arguments.json:
        options.print_json(
            drift.as_data() | {"proven": {t.id: proven.get(t.id, []) for t in toggles}}
        )
    else:
        print_drift(drift, options.make_console(), proven)
    return 1 if drift.stale_count else 0


def _mend_stale_cells(
    arguments: argparse.Namespace, toggles: list[Toggle], trees: list[SourceTree]
) -> int:
    """What would make the stale cells well, release by release, with how sure it is."""
    from harness.fixes.adopt import stale_repair
    from harness.fixes.registry import toggle_catalogue, toggle_reader

    places = toggle_catalogue.find_toggle_files(arguments.toggles)
    out = options.make_console()
    told: list[dict[str, Any]] = []
    unmended = 0
    known = [
        release.open_sources()
        for release in managed_releases.list_releases()
        if release.has_sources
    ]
    others = [tree for tree in known if tree.version not in {t.version for t in trees}]
    for toggle in toggles:
        found = stale_repair.repair_toggle(toggle, trees, others)
        if found is None:
            continue
        diff, text, path = "", "", places[toggle.id]
        if found.repaired_toggle is not None:
            before = path.read_text(encoding="utf-8")
            text = stale_repair.render_repaired_file(
                before, toggle, found.repaired_toggle, toggle_reader.find_variant_lines(path)
            )
            diff = nearest_code.format_diff(before, text, f"a/{path.name}", f"b/{path.name}")
        if arguments.write and text:
            path.write_text(text, encoding="utf-8")
        unmended += sum(isinstance(one, str) for one in found.proposals.values())
        told.append(
            {
                "id": toggle.id,
                "proposals": {
                    name: {"state": None, "why": [one]}
                    if isinstance(one, str)
                    else {"state": one.state.value, "why": list(one.remarks)}
                    for name, one in found.proposals.items()
                },
                "diff": diff,
                "written": bool(arguments.write and text),
            }
        )
    if arguments.json:
        options.print_json({"mended": told, "unmended": unmended})
    else:
        _print_mended(told, unmended, out)
    return 1 if unmended or any(not one["written"] for one in told) else 0


def _print_mended(mended: list[dict[str, Any]], unmended: int, out: Console) -> None:
    for one in mended:
        out.print(f"[bold]{one['id']}[/]")
        for name, proposal in one["proposals"].items():
            says = proposal["state"] or "nothing is proposed"
            why = "; ".join(proposal["why"]) or "its forms are those of the release beside it"
            out.print(f"  {name}: {says}: {why}", soft_wrap=True)
        options.print_diff(out, one["diff"])
        out.print()
    cells = sum(len(one["proposals"]) for one in mended)
    if not cells:
        out.print("nothing is stale")
        return
    out.print(f"{cells} stale cells, {cells - unmended} with a proposal")
    if any(one["diff"] and not one["written"] for one in mended):
        out.print("`--write` puts them into the files; read them first")


STATE_MARKS = {
    "fixed": ("fixed", "fix", "green"),
    "buggy": ("BUGGY", "BUG", "yellow"),
    "absent": ("·", "·", "dim"),
    "outside": ("-", "-", "dim"),
    "stale": ("STALE", "!!!", "bold red"),
    "applies": ("applies", "ok", "green"),
    "broken": ("BROKEN", "BRK", "bold red"),
}
FULL_WIDTH = 118


def print_drift(
    drift: DriftSurvey, out: Console, proven: Mapping[str, list[str]] | None = None
) -> None:
    from rich.table import Table
    from rich.text import Text

    narrow = out.width < FULL_WIDTH and len(drift.releases) > 3
    grid = Table(box=None, pad_edge=False, padding=(0, 0 if narrow else 1))
    grid.add_column("toggle", no_wrap=True)
    for column in drift.releases:
        name = column.name.removeprefix("0.5") if narrow else column.name
        grid.add_column(name, justify="center", no_wrap=True, min_width=4)

    def row(title: str, states: list[str]) -> None:
        cells = (STATE_MARKS[state] for state in states)
        grid.add_row(title, *(Text(short if narrow else full, style=s) for full, short, s in cells))

    for toggle in drift.toggles:
        states = [
            "outside" if toggle.id in column.out_of_range else column.states[toggle.id]
            for column in drift.releases
        ]
        row(toggle.id, states)
    numbers = sorted({number for column in drift.releases for number in column.upstream_states})
    if numbers:
        grid.add_row()
        grid.add_row(Text("SGLang's own reverts", style="bold"))
    for number in numbers:
        row(number, [column.upstream_states.get(number, "absent") for column in drift.releases])
    out.print(grid)
    for column in drift.releases:
        for finding in column.stale:
            out.print()
            out.print(
                Text(f"STALE {finding.toggle.id} on {column.name}: ", style="bold red")
                + Text(finding.problem, style="not bold")
            )
            if finding.nearest:
                out.print(Text(finding.nearest), soft_wrap=True)
    out.print()
    for proof, names in sorted(_group_by_proof(drift.toggles, proven or {}).items()):
        out.print(f"proven on {proof}: {', '.join(names)}", soft_wrap=True)
    out.print(drift.describe())


def _group_by_proof(
    toggles: Iterable[Toggle], proven: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Toggles that were proven at the same places."""
    found: dict[str, list[str]] = {}
    for toggle in toggles:
        for proof in proven.get(toggle.id, ()):
            found.setdefault(proof, []).append(toggle.id)
    return found
