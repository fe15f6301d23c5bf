"""`unfix list`: shows the registry, with each toggle's state on one release."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from harness.cli import options
from harness.core.wording import format_count
from harness.fixes.matching.status_cache import StatusCache, find_upstream_reverts
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus, find_toggle_status
from harness.fixes.registry.schema import Toggle
from harness.releases import managed_releases
from harness.store.prove import recorded_proofs

STATE_COLOURS = {"fixed": "32", "buggy": "33", "absent": "2", "stale": "1;31"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="TOGGLE", help="ids, families or globs")
    parser.add_argument(
        "--proposed", action="store_true", help="the fixes that SGLang does not have yet"
    )
    options.add_release(parser)
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    toggles = select_toggles(arguments)
    # This is fast and needs no network, unless the call names a release to download.
    tree = options.find_tree(arguments.release, fetch=arguments.release is not None)
    mended: set[str] = set()
    if arguments.release is not None:
        from harness.cli import guard_runs

        mended = guard_runs.mend_for_named_tree(arguments.release, tree, arguments.toggles)
    if mended:
        toggles = select_toggles(arguments)
    statuses: list[ToggleStatus] | list[None] = [None] * len(toggles)
    if tree:
        cache = StatusCache("states", find_toggle_status)
        statuses = cache.find_statuses(toggles, tree)
    reverts = find_upstream_reverts(tree) if tree else []
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


def select_toggles(arguments: argparse.Namespace) -> list[Toggle]:
    catalogue = options.load_catalogue(arguments)
    if arguments.proposed and not arguments.names:
        return list(catalogue.proposed.values())
    return catalogue.select_or_all(arguments.names)


def print_toggles(data: dict[str, Any], proofs: dict[str, list[str]]) -> None:
    width = options.get_output_width()
    wide = width >= 120
    names = ("toggle", "state", *(("family", "symptom") if wide else ()))
    lines = [(*names, "the bug without the fix", "proven on")]
    for row in data["toggles"]:
        state = row["state"] or "?"
        texts = [row["id"], f"{state}, mended" if row["mended"] else state]
        texts += (row["family"], row["symptom"]) if wide else ()
        places = proofs[row["id"]] if wide else [", ".join(p["where"] for p in row["proven"])]
        lines.append((*texts, row["title"], "\n".join(places)))
    print_columns(lines, width, [None, *(row["state"] for row in data["toggles"])])
    print()
    where = f"on SGLang {data['release']}" if data["release"] else "no release is here"
    print(f"{format_count(len(data['toggles']), 'toggle')}, {where}")
    if data["upstream"]:
        broken = [row["id"] for row in data["upstream"] if not row["applies"]]
        ids = ", ".join(row["id"] for row in data["upstream"])
        result = f"of these {', '.join(broken)} no longer apply" if broken else "all apply"
        print(f"SGLang's own registered reverts there: {ids}; {result}")


def print_columns(lines: Sequence[Sequence[str]], width: int, states: Sequence[str | None]) -> None:
    """Print a table whose last two columns are wrapped; rich would take half of the command's time.

    `states` colours the second column of each line on a terminal.
    """
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    left = max(24, width - sum(widths[:-2]) - 2 * (len(widths) - 1))
    longest = max(len(part) for line in lines for part in line[-1].split("\n"))
    widths[-1] = min(longest, left // 2)
    widths[-2] = min(widths[-2], left - widths[-1])
    colours = STATE_COLOURS if sys.stdout.isatty() and "NO_COLOR" not in os.environ else {}
    for line, state in zip(lines, states, strict=True):
        cells = [[text] for text in line[:-2]]
        for text, size in zip(line[-2:], widths[-2:], strict=True):
            parts = [textwrap.wrap(part, size, break_on_hyphens=False) for part in text.split("\n")]
            cells.append([part for wrapped in parts for part in wrapped])
        for row in itertools.zip_longest(*cells, fillvalue=""):
            padded = [part.ljust(size) for part, size in zip(row, widths, strict=True)]
            if state in colours:
                padded[1] = f"\x1b[{colours[state]}m{padded[1]}\x1b[0m"
            print("  ".join(padded).rstrip())
