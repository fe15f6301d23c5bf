"""Fills a folder with wheels, to install releases on a machine without a network."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from harness.core.errors import UnfixError
from harness.releases import cuda_toolkit, installer, pins, server_wheels, wheel_parts
from harness.releases.installer import ReportMessage
from harness.releases.managed_releases import Release
from harness.releases.pack_installer import PackManifest
from harness.releases.server_wheels import PackRequest

# Build requirements of unfix, in addition to its dependencies.
BUILD_REQUIREMENTS = ("hatchling>=1.27", "editables>=0.3")


STAGING = ".wheels"  # of a pack: what is fetched and not in a part yet


def fill_wheelhouse(
    releases: Sequence[Release], folder: Path, python: str, report: ReportMessage
) -> None:
    """Fetch the wheels of these releases and of unfix's dependencies, for a Python version."""
    folder.mkdir(parents=True, exist_ok=True)
    report("fetching the dependencies of unfix")
    _download_wheels(
        folder, python, [*_list_own_requirements(), *BUILD_REQUIREMENTS], "--only-binary :all:"
    )
    report("fetching the shared base of the releases")
    major, minor = map(int, python.split("."))
    missing = installer.MISSING_WHEELS.get((major, minor), {})
    for lock in (releases[0].base.lock_file, *(release.lock_file for release in releases)):
        if lock.stem != "base":
            report(f"fetching SGLang {lock.stem}")
        wanted = [one for one in pins.parse_requirements(lock) if one.name not in missing]
        if releases[0].device == "cuda":
            wanted = [one for one in wanted if one.name not in HOST_PACKAGES]
        _download_wheels(folder, python, list(map(str, wanted)), "--only-binary :all: --no-deps")
    if releases[0].device == "cpu":
        fetch_toolkit_wheels(folder, python, report)


def fetch_toolkit_wheels(folder: Path, python: str, report: ReportMessage) -> None:
    """Fetch the wheels of the CUDA toolkit and of the headers that some modules include."""
    report("fetching the CUDA toolkit that builds SGLang's kernels")
    locked = ["-r", str(cuda_toolkit.LOCK_FILE), "-r", str(cuda_toolkit.HEADERS_LOCK)]
    _download_wheels(folder, python, locked, "--only-binary :all: --no-deps --require-hashes")


HOST_PACKAGES = ("torch", "triton")


def _list_own_requirements() -> list[str]:
    needed = map(Requirement, importlib.metadata.requires("unfix") or ())
    return [str(one) for one in needed if "extra" not in str(one.marker or "")]


def _download_wheels(folder: Path, python: str, requirements: list[str], pip_options: str) -> None:
    target = server_wheels.list_target_options(python)
    installer.run_pip(["download", *pip_options.split(), *target, "-d", str(folder), *requirements])


def check_python_version(python: str) -> None:
    if not re.fullmatch(r"3\.\d+", python):
        raise UnfixError(f"--python {python} is not a Python version; an example is 3.12")
    if tuple(map(int, python.split("."))) not in installer.SUPPORTED_PYTHONS:
        raise UnfixError(
            f"SGLang's wheels are for Python {installer.describe_supported_pythons()}, not {python}"
        )


def pack_releases(
    releases: Sequence[Release], folder: Path, python: str, part_size: int, report: ReportMessage
) -> PackManifest:
    """Fetch what `fill_wheelhouse` does, in parts of a size."""
    staging = _open_staging(folder)
    fill_wheelhouse(releases, staging, python, report)
    contents = f"the releases {', '.join(release.name for release in releases)}"
    return _write_pack(staging, folder, part_size, _describe_pack(contents, python))


def pack_server(
    release: Release,
    folder: Path,
    python: str,
    left_out: Sequence[str],
    others: Sequence[str],
    part_size: int | None,
    report: ReportMessage,
) -> PackManifest:
    """Fetch what a server of a release needs, unfix's dependencies and others, into a pack."""
    own = [*_list_own_requirements(), *BUILD_REQUIREMENTS]
    request = PackRequest((f"sglang=={release.name}", *own, *others), python, tuple(left_out))
    staging = _open_staging(folder)
    resolution = folder / server_wheels.RESOLUTION
    names = server_wheels.fetch_server_wheels(request, staging, resolution, report)
    for wheel in staging.glob("*.whl"):
        if wheel.name not in names:
            wheel.unlink()  # of an earlier request
    contents = f"a server of SGLang {release.name}"
    about = _describe_pack(contents, python, is_server=True, left_out=tuple(left_out))
    return _write_pack(staging, folder, part_size, about)


def _open_staging(folder: Path) -> Path:
    staging = folder / STAGING
    staging.mkdir(parents=True, exist_ok=True)
    wheel_parts.restore_wheels(folder, staging)
    return staging


def _describe_pack(
    contents: str, python: str, is_server: bool = False, left_out: tuple[str, ...] = ()
) -> PackManifest:
    return PackManifest(contents, python, platform.machine(), is_server, left_out, ())


def _write_pack(
    staging: Path, folder: Path, part_size: int | None, about: PackManifest
) -> PackManifest:
    manifest = wheel_parts.write_parts(staging, folder, part_size, about)
    shutil.rmtree(staging)
    return manifest
