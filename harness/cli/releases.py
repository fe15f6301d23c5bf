"""`unfix releases`: which SGLang installations there are, and making and removing them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from harness.cli import options
from harness.errors import UnfixError
from harness.releases import install, managed, sources, standing, wheels
from harness.releases.managed import Release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        dest="action", metavar="list | add | remove | wheels", required=True
    )
    listing = actions.add_parser("list", help="the managed releases, and the current one")
    options.add_json(listing)
    adding = actions.add_parser("add", help="install releases, from their real wheels")
    _add_versions(adding)
    adding.add_argument("--sources", action="store_true", help="fetch the wheels alone, to read")
    adding.add_argument(
        "--torch", type=Path, metavar="PYTHON", help="for cuda: whose torch is shared (default: "
        "that of the first python here that has one for CUDA)",
    )  # fmt: skip
    adding.add_argument(
        "--wheels", type=Path, metavar="DIR", help="install from a folder that `releases wheels` "
        "filled, without a network (also: UNFIX_WHEELS)",
    )  # fmt: skip
    options.add_json(adding)
    removing = actions.add_parser("remove", help="remove releases")
    _add_versions(removing)
    removing.add_argument("--force", action="store_true", help="even while in use")
    options.add_json(removing)
    packing = actions.add_parser("wheels", help="fill a folder with all that `add` installs")
    _add_versions(packing)
    packing.add_argument("--into", type=Path, metavar="DIR", required=True)
    packing.add_argument("--python", metavar="X.Y", help="of the other machine (default: this one)")
    options.add_json(packing)


def _add_versions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="a version, or 'all'")
    parser.add_argument(
        "--device", choices=managed.DEVICES, default="cpu", help="cuda: beside a torch that is here"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "list":
        return listing(arguments.json)
    chosen = select(arguments.versions, arguments.device)
    if arguments.action == "wheels":
        return _fill(chosen, arguments)
    if arguments.action == "add":
        _add(chosen, arguments)
    else:
        for release in chosen:
            if not release.folder.exists() and release.wheel is None:
                raise UnfixError(f"SGLang {release.name} is not here: nothing to remove")
        for release in chosen:
            install.remove(release, arguments.force)
    if arguments.json:
        options.print_json([describe(release) for release in chosen])
    else:
        past = "here" if arguments.action == "add" else "gone"
        print(f"{', '.join(release.name for release in chosen)}: {past}")
    return 0


def _add(chosen: list[Release], arguments: argparse.Namespace) -> None:
    if arguments.wheels is not None:
        if not arguments.wheels.is_dir():
            raise UnfixError(f"there is no folder {arguments.wheels}")
        os.environ[install.WHEELS] = str(arguments.wheels.resolve())
    if arguments.torch is not None and arguments.device == "cpu":
        raise UnfixError("--torch goes with --device cuda: on a CPU releases have a torch of ours")
    for release in chosen:
        if arguments.sources:
            install.add_sources(release, options.say)
        else:
            install.add(release, options.say, arguments.torch and arguments.torch.absolute())
    beside = chosen[0].beside
    if beside is not None and not arguments.sources:
        options.say(f"beside {beside}")
        options.say(f"shared with it: {', '.join(standing.shared(chosen[0])) or 'nothing else'}")
        for release in chosen:
            absent = ", ".join(standing.stood_in_for(release)) or "nothing"
            options.say(f"{release.name}: stood in for, as it is absent: {absent}")


def _fill(chosen: list[Release], arguments: argparse.Namespace) -> int:
    python = arguments.python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    wheels.fill(chosen, arguments.into, python, options.say)
    files = sorted(arguments.into.glob("*.whl"))
    if arguments.json:
        options.print_json([file.name for file in files])
    else:
        size = sum(file.stat().st_size for file in files)
        print(f"{arguments.into}: {len(files)} wheels, {size / 1e6:.0f} MB, for Python {python}")
    return 0


def select(names: list[str], device: str = "cpu") -> list[Release]:
    if "all" in names:
        return managed.all_releases(device)
    return [managed.get(name, device) for name in names]


def describe(release: Release) -> dict[str, Any]:
    state = state_of(release)
    row = {
        "release": release.name,
        "device": release.device,
        "environment": state,
        "sources": release.installed or release.wheel is not None,
        "python": str(release.python) if state == "yes" else "",
    }
    if release.beside is not None:
        row["beside"] = str(release.beside)
        row["stands in"] = standing.stood_in_for(release)
    return row


def state_of(release: Release) -> str:
    if not release.folder.exists():
        return "no"
    return "yes" if release.ready else ("outdated" if release.installed else "incomplete")


def listing(as_json: bool) -> int:
    rows = [describe(release) for release in managed.all_releases()]
    for row in rows:
        row["cuda"] = state_of(managed.get(row["release"], "cuda"))
    current = sources.current()
    if as_json:
        shown = str(current.version) if current else None
        options.print_json({"current": shown, "managed": rows})
        return 0
    from rich.table import Table

    grid = Table(box=None, pad_edge=False)
    for title in ("release", "environment", "for cuda", "sources", "python"):
        grid.add_column(title)
    for row in rows:
        have = "yes" if row["sources"] else "no"
        grid.add_row(row["release"], row["environment"], row["cuda"], have, row["python"])
    if current is not None:
        grid.add_row("current", f"SGLang {current.version}", "", "yes", str(current.folder))
    options.console().print(grid)
    if not any(row["sources"] for row in rows):
        print("none is here yet: unfix releases add 0.5.23")
    return 0
