"""Fills a folder with wheels, to install releases on a machine without a network."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from harness.core.errors import UnfixError
from harness.releases import cuda_toolkit, installer, pins
from harness.releases.installer import ReportMessage
from harness.releases.managed_releases import Release

# pip matches platform tags literally, so every tag that a wheel may have is listed.
GLIBC_TAGS = (*range(5, 40), "2014", "2010", "1")
# Build requirements of unfix, in addition to its dependencies.
BUILD_REQUIREMENTS = ("hatchling>=1.27", "editables>=0.3")


def fill_wheelhouse(
    releases: Sequence[Release], folder: Path, python: str, report: ReportMessage
) -> None:
    """Fetch the wheels of these releases and of unfix's dependencies, for a Python version."""
    if not re.fullmatch(r"3\.\d+", python):
        raise UnfixError(f"--python {python} is not a Python version; an example is 3.12")
    version = tuple(map(int, python.split(".")))
    if version not in installer.SUPPORTED_PYTHONS:
        raise UnfixError(
            f"SGLang's wheels are for Python {installer.describe_supported_pythons()}, not {python}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    report("fetching the dependencies of unfix")
    _download_wheels(
        folder, python, [*_list_own_requirements(), *BUILD_REQUIREMENTS], "--only-binary :all:"
    )
    report("fetching the shared base of the releases")
    missing = installer.MISSING_WHEELS.get(version, {})
    for lock in (releases[0].base.lock_file, *(release.lock_file for release in releases)):
        if lock.stem != "base":
            report(f"fetching SGLang {lock.stem}")
        wanted = [one for one in pins.parse_requirements(lock) if one.name not in missing]
        if releases[0].device == "cuda":
            wanted = [one for one in wanted if one.name not in HOST_PACKAGES]
        _download_wheels(folder, python, list(map(str, wanted)), "--only-binary :all: --no-deps")
    if releases[0].device == "cpu":
        report("fetching the CUDA toolkit that builds SGLang's kernels")
        locked = ["-r", str(cuda_toolkit.LOCK_FILE), "-r", str(cuda_toolkit.HEADERS_LOCK)]
        _download_wheels(folder, python, locked, "--only-binary :all: --no-deps --require-hashes")


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
