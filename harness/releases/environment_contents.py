"""What imports in a release's environment without being there, and what it shares instead."""

from __future__ import annotations

from pathlib import Path

from harness.releases import installer
from harness.releases.managed_releases import Release


def list_standin_packages(folder: Path) -> list[str]:
    """The packages that a folder of stand-ins has."""
    return sorted(place.name for place in folder.iterdir() if (place / "__init__.py").is_file())


def list_active_standins(release: Release) -> list[str]:
    """What is absent in a release's environment, of all that has a stand-in there."""
    folders = [installer.STANDINS, *([installer.STANDINS_CUDA] if release.device == "cuda" else [])]
    places = [one.site_packages for one in (release, release.base) if one.site_packages is not None]
    places += [
        Path(folder) for folder in (release.shared_torch.folders if release.shared_torch else ())
    ]
    absent = (name for folder in folders for name in list_standin_packages(folder))
    return [name for name in absent if not any((place / name).is_dir() for place in places)]


def describe_shared_packages(release: Release) -> list[str]:
    """What a release takes from the torch that it stands beside, with its version."""
    beside = release.shared_torch
    if beside is None:
        return []
    wanted = installer.parse_requirements(release.base.lock_file)
    return [f"{one.name} {beside.packages[one.name]}" for one in wanted if beside.provides(one)]
