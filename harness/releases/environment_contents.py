"""The stand-ins that a release's environment uses, and the packages that it shares."""

from __future__ import annotations

from pathlib import Path

from harness.releases import installer, pins
from harness.releases.managed_releases import Release


def list_standin_packages(folder: Path) -> list[str]:
    """List the packages in a folder of stand-ins."""
    return sorted(path.parent.name for path in folder.glob("*/__init__.py"))


def list_active_standins(release: Release) -> list[str]:
    """List the packages that are missing in a release's environment and have a stand-in."""
    folders = [installer.STANDINS, *([installer.STANDINS_CUDA] if release.device == "cuda" else [])]
    installed = [r.site_packages for r in (release, release.base) if r.site_packages is not None]
    installed += map(Path, release.shared_torch.folders if release.shared_torch else ())
    names = (name for folder in folders for name in list_standin_packages(folder))
    return [name for name in names if not any((place / name).is_dir() for place in installed)]


def describe_shared_packages(release: Release) -> list[str]:
    """List the packages, with versions, that a release shares with the machine's torch."""
    shared = release.shared_torch
    if shared is None:
        return []
    required = pins.parse_requirements(release.base.lock_file)
    return [f"{r.name} {shared.packages[r.name]}" for r in required if shared.provides(r)]
