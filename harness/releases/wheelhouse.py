"""A folder of wheels from which releases are installed on a machine without a network."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from harness.core.errors import UnfixError
from harness.releases import installer
from harness.releases.installer import ReportMessage
from harness.releases.managed_releases import Release

# A tag of a platform is matched as it is written, so all that a wheel may have are named.
GLIBC_TAGS = (*range(5, 40), "2014", "2010", "1")
# What `./unfix` builds itself with, beside what it depends on.
BUILD_REQUIREMENTS = ("hatchling>=1.27", "editables>=0.3")


def fill_wheelhouse(
    releases: Sequence[Release], folder: Path, python: str, report: ReportMessage
) -> None:
    """Fetch what these releases are installed from, and unfix itself, for a Python."""
    if not re.fullmatch(r"3\.\d+", python):
        raise UnfixError(f"--python {python} is no version of Python: say 3.12")
    version = tuple(map(int, python.split(".")))
    if version not in installer.SUPPORTED_PYTHONS:
        raise UnfixError(
            f"SGLang's wheels are for Python {installer.describe_supported_pythons()}, not {python}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    report("fetching what unfix needs")
    _download_wheels(
        folder, python, [*_list_own_requirements(), *BUILD_REQUIREMENTS], "--only-binary :all:"
    )
    report("fetching what the releases share")
    lacks = installer.MISSING_WHEELS.get(version, {})
    for lock in (releases[0].base.lock_file, *(release.lock_file for release in releases)):
        if lock.stem != "base":
            report(f"fetching SGLang {lock.stem}")
        wanted = [one for one in installer.parse_requirements(lock) if one.name not in lacks]
        if releases[0].device == "cuda":
            wanted = [one for one in wanted if one.name not in HOST_PACKAGES]
        _download_wheels(folder, python, list(map(str, wanted)), "--only-binary :all: --no-deps")


HOST_PACKAGES = ("torch", "triton")


def _list_own_requirements() -> list[str]:
    needed = map(Requirement, importlib.metadata.requires("unfix") or ())
    return [str(one) for one in needed if "extra" not in str(one.marker or "")]


def _download_wheels(folder: Path, python: str, requirements: list[str], pip_options: str) -> None:
    machine = platform.machine()
    tags = [
        f"manylinux_2_{one}" if isinstance(one, int) else f"manylinux{one}" for one in GLIBC_TAGS
    ]
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_{machine}")]
    target = ["--python-version", python, "--implementation", "cp", *platforms]
    installer.run_pip(["download", *pip_options.split(), *target, "-d", str(folder), *requirements])
