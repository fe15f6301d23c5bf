"""`unfix releases`: which SGLang installations there are, and making and removing them."""

from __future__ import annotations

import argparse
from typing import Any

from harness.cli import options
from harness.errors import UnfixError
from harness.releases import install, managed, sources
from harness.releases.managed import Release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="list | add | remove", required=True)
    listing = actions.add_parser("list", help="the managed releases, and the current one")
    options.add_json(listing)
    adding = actions.add_parser("add", help="install releases on a CPU, from their real wheels")
    adding.add_argument("versions", nargs="+", metavar="VERSION", help="a version, or 'all'")
    adding.add_argument("--sources", action="store_true", help="fetch the wheels alone, to read")
    options.add_json(adding)
    removing = actions.add_parser("remove", help="remove releases")
    removing.add_argument("versions", nargs="+", metavar="VERSION")
    removing.add_argument("--force", action="store_true", help="even while in use")
    options.add_json(removing)


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "list":
        return listing(arguments.json)
    chosen = select(arguments.versions)
    if arguments.action == "remove":
        for release in chosen:
            if not release.folder.exists() and release.wheel is None:
                raise UnfixError(f"SGLang {release.name} is not here: nothing to remove")
    for release in chosen:
        if arguments.action == "add" and arguments.sources:
            install.add_sources(release, options.say)
        elif arguments.action == "add":
            install.add(release, options.say)
        else:
            install.remove(release, arguments.force)
    if arguments.json:
        options.print_json([describe(release) for release in chosen])
    else:
        past = "here" if arguments.action == "add" else "gone"
        print(f"{', '.join(release.name for release in chosen)}: {past}")
    return 0


def select(names: list[str]) -> list[Release]:
    if "all" in names:
        return managed.all_releases()
    return [managed.get(name) for name in names]


def describe(release: Release) -> dict[str, Any]:
    state = "no"
    if release.folder.exists():
        whole = release.ready
        state = "yes" if whole else ("outdated" if release.installed else "incomplete")
    return {
        "release": release.name,
        "environment": state,
        "sources": release.installed or release.wheel is not None,
        "python": str(release.python) if state == "yes" else "",
    }


def listing(as_json: bool) -> int:
    rows = [describe(release) for release in managed.all_releases()]
    current = sources.current()
    if as_json:
        shown = str(current.version) if current else None
        options.print_json({"current": shown, "managed": rows})
        return 0
    from rich.table import Table

    grid = Table(box=None, pad_edge=False)
    for title in ("release", "environment", "sources", "python"):
        grid.add_column(title)
    for row in rows:
        grid.add_row(
            row["release"], row["environment"], "yes" if row["sources"] else "no", row["python"]
        )
    if current is not None:
        grid.add_row("current", f"SGLang {current.version}", "yes", str(current.folder))
    options.console().print(grid)
    if not any(row["sources"] for row in rows):
        print("none is here yet: unfix releases add 0.5.23")
    return 0
