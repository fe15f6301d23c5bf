"""`unfix doctor`: what this machine has, what is missing, what stands in for it."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from harness.cli import options
from harness.cli.releases import describe_environment
from harness.core import machine as hardware
from harness.core import paths
from harness.core.errors import UnfixError
from harness.releases import environment_contents, installer, source_trees
from harness.releases import managed_releases as managed
from harness.releases.managed_releases import Release


@dataclass(frozen=True)
class DoctorFinding:
    """One thing that was looked at."""

    name: str
    ok: bool | None  # None: a fact, neither good nor bad
    found: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    lines = [*check_machine(), *check_registry(), *check_releases(), *check_standins()]
    if arguments.json:
        options.print_json([vars(line) for line in lines])
    else:
        from rich.table import Table
        from rich.text import Text

        marks = {True: ("ok", "green"), False: ("NO", "bold red"), None: ("", "")}
        grid = Table(box=None, pad_edge=False, show_header=False)
        for line in lines:
            grid.add_row(line.name, Text(*marks[line.ok]), line.found)
        options.make_console().print(grid)
    return 3 if any(line.ok is False for line in lines) else 0


def check_machine() -> list[DoctorFinding]:
    version = sys.version_info[:2]
    lacking = installer.describe_missing_wheels(version)
    if version not in installer.SUPPORTED_PYTHONS:
        lacking = f"managed releases need {installer.describe_supported_pythons()}"
    place = next(
        p for p in (paths.workspace_folder(), *paths.workspace_folder().parents) if p.exists()
    )
    free = shutil.disk_usage(place).free / 2**30
    return [
        DoctorFinding(
            "python",
            version in installer.SUPPORTED_PYTHONS,
            f"{platform.python_version()} at {sys.executable}"
            + (f"; {lacking}" if lacking else ""),
        ),
        DoctorFinding("platform", None, f"{platform.system()} {platform.machine()}"),
        DoctorFinding("pip", *_check_pip()),
        DoctorFinding("disk", free > 1, f"{free:.0f} GiB free under {paths.workspace_folder()}"),
        DoctorFinding("gpu", None, _describe_gpu()),
    ]


def _check_pip() -> tuple[bool, str]:
    found = importlib.util.find_spec("pip") is not None
    return found, "there" if found else f"missing: {sys.executable} -m ensurepip"


def _describe_gpu() -> str:
    return hardware.describe_gpus() or "none: CUDA guards are n/a here"


def check_registry() -> list[DoctorFinding]:
    from harness.fixes.registry import toggle_catalogue

    try:
        return [
            DoctorFinding(
                "toggles",
                True,
                f"{len(toggle_catalogue.load_catalogue())} in {paths.toggles_folder()}",
            )
        ]
    except UnfixError as error:
        return [DoctorFinding("toggles", False, str(error))]


def check_releases() -> list[DoctorFinding]:
    current = source_trees.find_installed_tree()
    found = [
        DoctorFinding(
            "current",
            None,
            f"SGLang {current.version} in {current.folder}"
            if current
            else "no SGLang in this python",
        )
    ]
    for device in managed.DEVICES:
        found += _check_environments(managed.list_releases(device), device)
    missing = [r.name for r in managed.list_releases() if not r.folder.exists()]
    if missing:
        found.append(DoctorFinding("not installed", None, ", ".join(missing)))
    return found


STANDIN_FOLDERS = (
    (installer.STANDINS, "always"),
    (installer.STANDINS_CUDA, "for CUDA"),
    (installer.STANDINS_NPU, "for NPU suites"),
)


def _check_environments(managed_releases: Sequence[Release], device: str) -> list[DoctorFinding]:
    base = managed_releases[0].base
    found = []
    option = "" if device == "cpu" else f" --device {device}"
    if base.folder.exists():
        whole = base.is_current()
        remedy = f"unfix releases add VERSION{option} makes it anew"
        says = f"{base.folder} is cut short or outdated: {remedy}"
        if whole:
            says = f"{base.folder}{f', beside {base.shared_torch}' if base.shared_torch else ''}"
        found.append(DoctorFinding(base.folder.name, whole, says))
    for release in managed_releases:
        state = describe_environment(release)
        name = f"release {release.folder.name}"
        if state == "yes":
            found.append(DoctorFinding(name, True, str(release.folder)))
        elif state != "no":
            found.append(
                DoctorFinding(name, False, f"{state}: unfix releases add {release.name}{option}")
            )
    return found


def check_standins() -> list[DoctorFinding]:
    """What imports in a release's environment without being there."""
    lines = []
    for folder, when in STANDIN_FOLDERS:
        for name in environment_contents.list_standin_packages(folder):
            real = sorted(paths.releases_folder().glob(f"*/lib/python*/site-packages/{name}"))
            says = f"a stand-in that refuses to be called, {when}"
            if real:
                says = f"{', '.join(map(str, real))} (real)"
            lines.append(DoctorFinding(f"stands in: {name}", None, says))
    return lines
