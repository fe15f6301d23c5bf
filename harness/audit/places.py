"""Where a release's sources lie: a folder that holds the package, or a wheel."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "sglang"
Place = Path | zipfile.Path


def opened(place: Path) -> Place:
    return zipfile.Path(place) if place.suffix == ".whl" else place


def sources(place: Path) -> Iterator[tuple[str, bytes]]:
    """The package's files, by their paths in it."""
    if place.suffix == ".whl":
        with zipfile.ZipFile(place) as wheel:
            for name in sorted(wheel.namelist()):
                if name.startswith(f"{PACKAGE}/") and name.endswith(".py"):
                    yield name, wheel.read(name)
        return
    for file in sorted((place / PACKAGE).rglob("*.py")):
        yield file.relative_to(place).as_posix(), file.read_bytes()
