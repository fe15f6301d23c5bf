"""`unfix list`: the registry, with each toggle's state on one release."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from harness.cli import options
from harness.core.errors import NotReadyError
from harness.fixes.matching.status_cache import MATCHING_CODE_DIGEST, StatusCache
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.releases import managed_releases, provisioning, upstream_reverts
from harness.releases.source_trees import SourceTree
from harness.store.prove import recorded_proofs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="TOGGLE", help="ids, families or globs")
    options.add_release(parser)
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    catalogue = options.load_catalogue(arguments)
    toggles = catalogue.select_or_all(arguments.names)
    # At once, and without a network: only a release that is named is fetched.
    tree = find_tree(arguments.release, fetch=arguments.release is not None)
    states: dict[str, ToggleState | None] = dict.fromkeys(toggle.id for toggle in toggles)
    if tree:
        states |= {
            f.toggle.id: f.state
            for f in StatusCache("states", find_toggle_status, MATCHING_CODE_DIGEST).find_statuses(
                toggles, tree
            )
        }
    own = upstream_reverts.read_upstream_reverts(tree) if tree else []
    known = [release.name for release in managed_releases.list_releases()]
    proven = recorded_proofs.load_proofs(known)
    data: dict[str, Any] = {
        "release": str(tree.version or tree.name) if tree else None,
        "toggles": [
            {
                "id": t.id,
                "state": state.value if (state := states[t.id]) else None,
                "family": t.family,
                "symptom": t.symptom.value,
                "devices": [d.value for d in t.devices],
                "upstream": list(t.upstream),
                "title": t.title,
                "unguarded": t.unguarded,
                "proven": [dataclasses.asdict(proof) for proof in proven.get(t.id, ())],
            }
            for t in toggles
        ],
        "upstream": [{"id": r.name, "applies": not r.problem, "problem": r.problem} for r in own],
    }
    if arguments.json:
        options.print_json(data)
    else:
        print_toggles(
            data, {t.id: [one.describe(known) for one in proven.get(t.id, ())] for t in toggles}
        )
    return 1 if ToggleState.STALE in states.values() else 0


def find_tree(name: str | None, fetch: bool) -> SourceTree | None:
    """Without a release the registry can still be read; one that was asked for must be there."""
    try:
        return (
            provisioning.ensure_tree(name, options.report_status)
            if fetch
            else managed_releases.open_release_tree(name)
        )
    except NotReadyError as error:
        if name is not None:
            raise
        options.report_status(f"{error}; states are left out")
        return None


STATE_STYLES = {"fixed": "green", "buggy": "yellow", "absent": "dim", "stale": "bold red"}


def print_toggles(data: dict[str, Any], proven: dict[str, list[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = options.make_console()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    wide = out.width >= 120
    for title in ("toggle", "state", *(("family", "symptom") if wide else ())):
        grid.add_column(title, no_wrap=True)
    grid.add_column("what is wrong when the fix is out")
    grid.add_column("proven on")
    for row in data["toggles"]:
        state = row["state"] or "?"
        grid.add_row(
            row["id"],
            Text(state, style=STATE_STYLES.get(state, "")),
            *((row["family"], row["symptom"]) if wide else ()),
            row["title"] + (" (no suite yet)" if row["unguarded"] else ""),
            "\n".join(proven[row["id"]]) if wide else " ".join(p["where"] for p in row["proven"]),
        )
    out.print(grid)
    out.print()
    where = f"on SGLang {data['release']}" if data["release"] else "no release here to look at"
    out.print(f"{len(data['toggles'])} toggles, {where}")
    if data["upstream"]:
        broken = [row["id"] for row in data["upstream"] if not row["applies"]]
        says = f"; of these {', '.join(broken)} no longer apply" if broken else "; all apply"
        out.print(
            "SGLang's own registered reverts there: "
            + ", ".join(row["id"] for row in data["upstream"])
            + says
        )
