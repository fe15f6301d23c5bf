"""`unfix releases`: lists, installs and removes SGLang installations."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from harness.cli import options
from harness.core.errors import UnfixError
from harness.releases import (
    added_releases,
    cuda_toolkit,
    environment_contents,
    installer,
    managed_releases,
    source_trees,
    wheel_parts,
    wheelhouse,
)
from harness.releases.managed_releases import Release
from harness.releases.pack_installer import PackManifest

_TOOLKIT = "cuda-toolkit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        dest="action", metavar="list | add | remove | wheels", required=True
    )
    listing = actions.add_parser("list", help="the managed releases, and the current one")
    options.add_json(listing)
    adding = actions.add_parser("add", help="install releases, from their real wheels")
    _add_version_options(adding)
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
    _add_version_options(removing)
    removing.add_argument("--force", action="store_true", help="even while in use")
    options.add_json(removing)
    packing = actions.add_parser("wheels", help="fill a folder with all that `add` installs")
    _add_version_options(packing)
    packing.add_argument("--into", type=Path, metavar="DIR", required=True)
    packing.add_argument("--python", metavar="X.Y", help="of the other machine (default: this one)")
    packing.add_argument("--server", action="store_true", help="all that a server of one release "
        "needs on a CUDA machine, and lm-eval")  # fmt: skip
    packing.add_argument("--without", metavar="NAME,...", help="for --server: leave out what the "
        "other machine has, and what nothing else needs")  # fmt: skip
    packing.add_argument("--part-size", metavar="SIZE", help="lay them out in folders DIR/1, "
        "DIR/2, ... of at most this size (60MB), with an install.py that joins them")  # fmt: skip
    options.add_json(packing)


def _add_version_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "versions",
        nargs="+",
        metavar="RELEASE",
        help="a version, 'all' (those with a lock of ours), for add and wheels 'cuda-toolkit' "
        "(what builds SGLang's CUDA kernels here), and for add: a wheel, a checkout (~/sglang), a "
        "commit or branch of one (~/sglang@main)",
    )
    parser.add_argument(
        "--device",
        choices=managed_releases.DEVICES,
        default="cpu",
        help="cuda: beside a torch that is here",
    )


def run_command(arguments: argparse.Namespace) -> int:
    if arguments.action == "list":
        return print_releases(arguments.json)
    if arguments.action == "add" and arguments.versions == [_TOOLKIT]:
        return _add_cuda_toolkit(arguments)
    if arguments.action == "wheels":
        return _fill_wheel_folder(arguments)
    chosen = select_releases(arguments)
    if arguments.action == "add":
        _add_releases(chosen, arguments)
    else:
        for release in chosen:
            if not release.folder.exists() and release.any_wheel is None:
                raise UnfixError(f"SGLang {release.name} is not here: nothing to remove")
        for release in chosen:
            installer.remove_release(release, arguments.force)
    if arguments.json:
        options.print_json([release_to_json(release) for release in chosen])
    else:
        past = "here" if arguments.action == "add" else "gone"
        print(f"{', '.join(release.name for release in chosen)}: {past}")
    return 0


def _add_cuda_toolkit(arguments: argparse.Namespace) -> int:
    _choose_wheel_folder(arguments)
    toolkit = cuda_toolkit.ensure_toolkit(options.report_status)
    if arguments.json:
        options.print_json({"cuda-toolkit": str(toolkit.folder)})
    else:
        print(f"cuda-toolkit: here, at {toolkit.folder}")
    return 0


def _choose_wheel_folder(arguments: argparse.Namespace) -> None:
    if arguments.wheels is not None:
        if not arguments.wheels.is_dir():
            raise UnfixError(f"there is no folder {arguments.wheels}")
        os.environ[installer.WHEELS_VARIABLE] = str(arguments.wheels.resolve())


def _add_releases(chosen: list[Release], arguments: argparse.Namespace) -> None:
    _choose_wheel_folder(arguments)
    if arguments.torch is not None and arguments.device == "cpu":
        raise UnfixError("--torch goes with --device cuda: a CPU release installs its own torch")
    for release in chosen:
        if arguments.sources:
            installer.fetch_release_sources(release, options.report_status)
        else:
            installer.install_release(
                release, options.report_status, arguments.torch and arguments.torch.absolute()
            )
    beside = chosen[0].shared_torch
    if beside is not None and not arguments.sources:
        shared = environment_contents.describe_shared_packages(chosen[0])
        packages = f", and of its packages {', '.join(shared)}" if shared else ""
        options.report_status(f"uses {beside}{packages}")
        for release in chosen:
            if standins := ", ".join(environment_contents.list_active_standins(release)):
                options.report_status(f"{release.name}: stand-ins for absent packages: {standins}")


def _fill_wheel_folder(arguments: argparse.Namespace) -> int:
    python = arguments.python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    wheelhouse.check_python_version(python)
    part_size = arguments.part_size and wheel_parts.parse_size(arguments.part_size)
    if arguments.without and not arguments.server:
        raise UnfixError("--without goes with --server")
    if arguments.server:
        manifest = _pack_server(arguments, python, part_size)
        return _print_pack(manifest, arguments)
    if arguments.versions == [_TOOLKIT] and not part_size:
        wheelhouse.fetch_toolkit_wheels(arguments.into, python, options.report_status)
        return _print_wheels(arguments, python)
    chosen = select_releases(arguments)
    if part_size:
        status = options.report_status
        manifest = wheelhouse.pack_releases(chosen, arguments.into, python, part_size, status)
        return _print_pack(manifest, arguments)
    wheelhouse.fill_wheelhouse(chosen, arguments.into, python, options.report_status)
    return _print_wheels(arguments, python)


def _print_wheels(arguments: argparse.Namespace, python: str) -> int:
    files = sorted(arguments.into.glob("*.whl"))
    if arguments.json:
        options.print_json([file.name for file in files])
    else:
        size = sum(file.stat().st_size for file in files)
        print(f"{arguments.into}: {len(files)} wheels, {size / 1e6:.0f} MB, for Python {python}")
    return 0


def _pack_server(arguments: argparse.Namespace, python: str, part_size: int | None) -> PackManifest:
    from harness.runs.eval.lm_eval_scorer import LM_EVAL_REQUIREMENT

    if arguments.device != "cuda":
        raise UnfixError("--server goes with --device cuda: a CPU serves from `releases add`")
    if len(arguments.versions) != 1 or arguments.versions == ["all"]:
        raise UnfixError("--server packs one release, such as 0.5.23")
    if managed_releases.is_path(arguments.versions[0]):
        raise UnfixError(
            f"--server packs a version of the package index, not {arguments.versions[0]}"
        )
    release = select_releases(arguments)[0]
    names = [name.strip() for name in (arguments.without or "").split(",") if name.strip()]
    return wheelhouse.pack_server(
        release,
        arguments.into,
        python,
        names,
        [LM_EVAL_REQUIREMENT],
        part_size,
        options.report_status,
    )


def _print_pack(manifest: PackManifest, arguments: argparse.Namespace) -> int:
    sizes: dict[str, int] = {}
    for piece in (piece for wheel in manifest.wheels for piece in wheel.pieces):
        sizes[piece.part] = sizes.get(piece.part, 0) + piece.size
    total = installer.format_size(sum(sizes.values()))
    into, python = arguments.into, manifest.python
    if arguments.json:
        names = [wheel.name for wheel in manifest.wheels]
        parts = [
            {"folder": str(into / part), "bytes": size}
            for part, size in sorted(sizes.items(), key=lambda one: int(one[0] or 0))
        ]
        options.print_json({"wheels": names, "parts": parts})
        return 0
    parted = "" if "" in sizes else f", in {len(sizes)} parts"
    print(f"{into}: {len(manifest.wheels)} wheels, {total}, for Python {python}{parted}")
    print(f"copy {into} there (its parts may all go into one folder, with its other files), then:")
    if manifest.is_server:
        print(f"  python{python} install.py --venv ENV        # or --target FOLDER")
    else:
        print("  python3 install.py --join wheels")
    return 0


def select_releases(arguments: argparse.Namespace) -> list[Release]:
    """Select the named releases; `add` and `wheels` take releases that nobody has added yet."""
    names, device = arguments.versions, arguments.device
    if "all" in names:
        return managed_releases.list_releases(device)
    if arguments.action == "remove":
        return [managed_releases.get_release(name, device) for name in names]
    return [added_releases.add_release(name, device, options.report_status) for name in names]


def release_to_json(release: Release) -> dict[str, Any]:
    state = describe_environment(release)
    row = {
        "release": release.name,
        "device": release.device,
        "environment": state,
        "sources": release.is_installed or release.any_wheel is not None,
        "python": str(release.python) if state == "yes" else "",
    }
    record = added_releases.read_record(release)
    if record is not None:
        row["added from"] = record.origin
    if release.shared_torch is not None:
        row["beside"] = str(release.shared_torch)
        row["stands in"] = environment_contents.list_active_standins(release)
    return row


def describe_environment(release: Release) -> str:
    if not release.folder.exists():
        return "no"
    return "yes" if release.is_ready else ("outdated" if release.is_installed else "incomplete")


def print_releases(as_json: bool) -> int:
    rows = [release_to_json(release) for release in managed_releases.list_known_releases()]
    for row in rows:
        row["cuda"] = describe_environment(managed_releases.get_release(row["release"], "cuda"))
    current = source_trees.find_installed_tree()
    if as_json:
        version = str(current.version) if current else None
        options.print_json({"current": version, "managed": rows})
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
    options.make_console().print(grid)
    if not any(row["sources"] for row in rows):
        print("none is here yet: unfix releases add 0.5.23")
    return 0
