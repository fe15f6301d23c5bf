"""`unfix doctor`: lists this machine's equipment, its missing parts, and the stand-ins."""

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
from harness.releases import cuda_toolkit, environment_contents, installer, source_trees
from harness.releases import managed_releases as managed
from harness.releases.managed_releases import Release


@dataclass(frozen=True)
class DoctorFinding:
    """One fact about the machine."""

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
    workspace = paths.workspace_folder()
    existing = next(folder for folder in (workspace, *workspace.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 2**30
    return [
        DoctorFinding(
            "python",
            version in installer.SUPPORTED_PYTHONS,
            f"{platform.python_version()} at {sys.executable}"
            + (f"; {lacking}" if lacking else ""),
        ),
        DoctorFinding("platform", None, f"{platform.system()} {platform.machine()}"),
        DoctorFinding("pip", *_check_pip()),
        DoctorFinding("disk", free > 1, f"{free:.0f} GiB free under {workspace}"),
        DoctorFinding("CUDA toolkit", None, _describe_toolkit()),
        DoctorFinding("gpu", None, hardware.describe_gpus() or "none: CUDA guards are n/a here"),
    ]


def _describe_toolkit() -> str:
    """Describe what builds SGLang's CUDA kernels for the virtual GPU."""
    try:
        compiler = cuda_toolkit.check_host_compiler()
    except UnfixError as error:
        return str(error)
    toolkit = cuda_toolkit.find_toolkit()
    where = f"at {toolkit.folder}" if toolkit else "installed when a command first needs it"
    return f"{where}; host code by {compiler}"


def _check_pip() -> tuple[bool, str]:
    has_pip = importlib.util.find_spec("pip") is not None
    return has_pip, "installed" if has_pip else f"missing: {sys.executable} -m ensurepip"


def check_registry() -> list[DoctorFinding]:
    from harness.fixes.registry import toggle_catalogue

    try:
        count = len(toggle_catalogue.load_catalogue())
        return [DoctorFinding("toggles", True, f"{count} in {paths.toggles_folder()}")]
    except UnfixError as error:
        return [DoctorFinding("toggles", False, str(error))]


def check_releases() -> list[DoctorFinding]:
    current = source_trees.find_installed_tree()
    text = (
        f"SGLang {current.version} in {current.folder}" if current else "no SGLang in this python"
    )
    findings = [DoctorFinding("current", None, text)]
    for device in managed.DEVICES:
        findings += _check_environments(managed.list_known_releases(device), device)
    missing = [r.name for r in managed.list_releases() if not r.folder.exists()]
    if missing:
        findings.append(DoctorFinding("not installed", None, ", ".join(missing)))
    return findings


STANDIN_FOLDERS = (
    (installer.STANDINS, "always"),
    (installer.STANDINS_CUDA, "for CUDA"),
    (installer.STANDINS_NPU, "for NPU suites"),
)


def _check_environments(managed_releases: Sequence[Release], device: str) -> list[DoctorFinding]:
    base = managed_releases[0].base
    option = "" if device == "cpu" else f" --device {device}"
    findings = []
    if base.folder.exists():
        text = f"{base.folder}{f', beside {base.shared_torch}' if base.shared_torch else ''}"
        is_current = base.is_current()
        if not is_current:
            remedy = f"unfix releases add VERSION{option} installs it again"
            text = f"{base.folder} is incomplete or outdated: {remedy}"
        findings.append(DoctorFinding(base.folder.name, is_current, text))
    for release in managed_releases:
        state = describe_environment(release)
        name = f"release {release.folder.name}"
        if state == "yes":
            findings.append(DoctorFinding(name, True, str(release.folder)))
        elif state != "no":
            remedy = f"{state}: unfix releases add {release.name}{option}"
            findings.append(DoctorFinding(name, False, remedy))
    return findings


def check_standins() -> list[DoctorFinding]:
    """Check the stand-ins for packages that a release's environment lacks."""
    lines = []
    for folder, when in STANDIN_FOLDERS:
        for name in environment_contents.list_standin_packages(folder):
            real = sorted(paths.releases_folder().glob(f"*/lib/python*/site-packages/{name}"))
            text = f"{', '.join(map(str, real))} (real)"
            if not real:
                text = f"a stand-in that refuses to be called, {when}"
            lines.append(DoctorFinding(f"stand-in: {name}", None, text))
    return lines
