"""The sources of a release, from the package's folder or from a wheel."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "sglang"
FileTree = Path | zipfile.Path


def open_location(location: Path) -> FileTree:
    return zipfile.Path(location) if location.suffix == ".whl" else location


def iterate_sources(location: Path) -> Iterator[tuple[str, bytes]]:
    """Iterate the package's files, by their paths in it."""
    if location.suffix == ".whl":
        with zipfile.ZipFile(location) as wheel:
            for name in sorted(wheel.namelist()):
                if name.startswith(f"{PACKAGE}/") and name.endswith(".py"):
                    yield name, wheel.read(name)
        return
    for file in sorted((location / PACKAGE).rglob("*.py")):
        yield file.relative_to(location).as_posix(), file.read_bytes()
