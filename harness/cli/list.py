"""`unfix list`: the registry, with each toggle's state on one release."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from harness.cli import options
from harness.errors import NotReady
from harness.matching.known import FOUND_BY, Known
from harness.matching.states import State, find
from harness.releases import having, managed, upstream
from harness.releases.sources import SourceTree
from harness.store.prove import recorded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="TOGGLE", help="ids, families or globs")
    options.add_release(parser)
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    catalogue = options.catalogue(arguments)
    toggles = catalogue.select_or_all(arguments.names)
    # At once, and without a network: only a release that is named is fetched.
    tree = tree_or_none(arguments.release, fetch=arguments.release is not None)
    states: dict[str, State | None] = dict.fromkeys(toggle.id for toggle in toggles)
    if tree:
        states |= {
            f.toggle.id: f.state for f in Known("states", find, FOUND_BY).find(toggles, tree)
        }
    own = upstream.registered(tree) if tree else []
    known = [release.name for release in managed.all_releases()]
    proven = recorded.proofs(known)
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
        show(data, {t.id: [one.told(known) for one in proven.get(t.id, ())] for t in toggles})
    return 1 if State.STALE in states.values() else 0


def tree_or_none(name: str | None, fetch: bool) -> SourceTree | None:
    """Without a release the registry can still be read; one that was asked for must be there."""
    try:
        return having.tree(name, options.say) if fetch else managed.tree(name)
    except NotReady as error:
        if name is not None:
            raise
        options.say(f"{error}; states are left out")
        return None


STYLES = {"fixed": "green", "buggy": "yellow", "absent": "dim", "stale": "bold red"}


def show(data: dict[str, Any], proven: dict[str, list[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = options.console()
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
            Text(state, style=STYLES.get(state, "")),
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
