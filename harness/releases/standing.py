"""What imports in a release's environment without being there, and what it shares instead."""

from __future__ import annotations

from pathlib import Path

from harness.releases import install
from harness.releases.managed import Release


def names(folder: Path) -> list[str]:
    """The packages that a folder of stand-ins has."""
    return sorted(place.name for place in folder.iterdir() if (place / "__init__.py").is_file())


def stood_in_for(release: Release) -> list[str]:
    """What is absent in a release's environment, of all that has a stand-in there."""
    folders = [install.STANDINS, *([install.STANDINS_CUDA] if release.device == "cuda" else [])]
    places = [one.site for one in (release, release.base) if one.site is not None]
    places += [Path(folder) for folder in (release.beside.folders if release.beside else ())]
    absent = (name for folder in folders for name in names(folder))
    return [name for name in absent if not any((place / name).is_dir() for place in places)]


def shared(release: Release) -> list[str]:
    """What a release takes from the torch that it stands beside, with its version."""
    beside = release.beside
    if beside is None:
        return []
    wanted = install.requirements(release.base.lock)
    return [f"{one.name} {beside.packages[one.name]}" for one in wanted if beside.has(one)]
