"""`unfix list`: shows the registry, with each toggle's state on one release."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from harness.cli import options
from harness.core.wording import format_count
from harness.fixes.matching.status_cache import StatusCache
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus, find_toggle_status
from harness.releases import managed_releases, upstream_reverts
from harness.store.prove import recorded_proofs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="TOGGLE", help="ids, families or globs")
    options.add_release(parser)
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    toggles = options.load_catalogue(arguments).select_or_all(arguments.names)
    # This is fast and needs no network, unless the call names a release to download.
    tree = options.find_tree(arguments.release, fetch=arguments.release is not None)
    mended: set[str] = set()
    if arguments.release is not None:
        from harness.cli import guard_runs

        mended = guard_runs.mend_for_named_tree(arguments.release, tree, arguments.toggles)
    if mended:
        toggles = options.load_catalogue(arguments).select_or_all(arguments.names)
    statuses: list[ToggleStatus] | list[None] = [None] * len(toggles)
    if tree:
        cache = StatusCache("states", find_toggle_status)
        statuses = cache.find_statuses(toggles, tree)
    reverts = upstream_reverts.read_upstream_reverts(tree) if tree else []
    known = [release.name for release in managed_releases.list_releases()]
    proofs = recorded_proofs.load_proofs(known)
    rows = [
        options.toggle_to_json(toggle, status)
        | {"mended": toggle.id in mended}
        | {"proven": [dataclasses.asdict(proof) for proof in proofs.get(toggle.id, ())]}
        for toggle, status in zip(toggles, statuses, strict=True)
    ]
    data: dict[str, Any] = {
        "release": str(tree.version or tree.name) if tree else None,
        "toggles": rows,
        "upstream": [
            {"id": r.name, "applies": not r.problem, "problem": r.problem} for r in reverts
        ],
    }
    if arguments.json:
        options.print_json(data)
    else:
        texts = {t.id: [one.describe(known) for one in proofs.get(t.id, ())] for t in toggles}
        print_toggles(data, texts)
    return 1 if any(row["state"] == ToggleState.STALE.value for row in rows) else 0


def print_toggles(data: dict[str, Any], proofs: dict[str, list[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = options.make_console()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    wide = out.width >= 120
    for title in ("toggle", "state", *(("family", "symptom") if wide else ())):
        grid.add_column(title, no_wrap=True)
    grid.add_column("the bug without the fix")
    grid.add_column("proven on")
    for row in data["toggles"]:
        state = row["state"] or "?"
        grid.add_row(
            row["id"],
            Text(
                f"{state}, mended" if row["mended"] else state,
                style=options.STATE_STYLES.get(state, ""),
            ),
            *((row["family"], row["symptom"]) if wide else ()),
            row["title"],
            "\n".join(proofs[row["id"]]) if wide else " ".join(p["where"] for p in row["proven"]),
        )
    out.print(grid)
    out.print()
    where = f"on SGLang {data['release']}" if data["release"] else "no release is here"
    out.print(f"{format_count(len(data['toggles']), 'toggle')}, {where}")
    if data["upstream"]:
        broken = [row["id"] for row in data["upstream"] if not row["applies"]]
        ids = ", ".join(row["id"] for row in data["upstream"])
        result = f"of these {', '.join(broken)} no longer apply" if broken else "all apply"
        out.print(f"SGLang's own registered reverts there: {ids}; {result}")
