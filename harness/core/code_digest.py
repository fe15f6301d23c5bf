"""One digest of the project's own code, for every cache on disk.

A cached value is valid as long as the code that computed it is the same. Code of one wing uses code
of that wing and of the wings below it and no other (`tests/test_layers.py` checks it), so a
cache names the highest wing that its values depend on. Example: a program compiled for the CPU
depends on `sanitizer`; changing a byte in `harness/core/cache.py` or in
`harness/sanitizer/cpu/lowering.py` makes it a miss, changing one in `harness/cli` does not.
`tests/cache_keys.py` measures for each cache that its wing covers all that its values import.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.core import paths

# From the lowest wing to the highest: the folders and modules of `harness`.
WINGS = (
    "__init__.py",
    "core",
    "sanitizer",
    "store",
    "releases",
    "fixes",
    "findings",
    "patching",
    "toggles.py",
    "checking.py",
    "startup",
    "guards",
    "matrices",
    "workers",
    "runs",
    "cli",
    "__main__.py",
)
PYTEST_SETTINGS = ("conftest.py", "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def compute_digest(*parts: str | bytes) -> str:
    """Hash the parts, and where one ends and the next begins."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:32]


@functools.cache
def digest_code(wing: str) -> str:
    """Hash the code of a wing and of all wings below it, as it is at the first call.

    Call this while the module that uses the digest is imported: a running process executes the code
    that it imported, whatever is edited on disk afterwards.
    """
    position = WINGS.index(wing)
    parts: list[str | bytes] = [digest_code(WINGS[position - 1])] if position else []
    for file in iterate_files(paths.HARNESS_FOLDER / wing):
        parts += [str(file.relative_to(paths.HARNESS_FOLDER)), read_file(file)]
    return compute_digest(*parts)


def iterate_files(place: Path) -> Iterator[Path]:
    """Iterate a file, or all files of a folder in order, without compiled and hidden ones."""
    if place.is_file():
        yield place
        return
    for file in sorted(place.rglob("*")):
        parts = file.relative_to(place).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if not hidden and file.is_file():
            yield file


def iterate_pytest_settings(folder: Path) -> Iterator[Path]:
    """Iterate the files by which pytest is set up for a folder: there and in each folder above."""
    for each in (folder, *folder.parents):
        yield from filter(Path.is_file, (each / name for name in PYTEST_SETTINGS))


def read_file(file: Path) -> bytes:
    return file.read_bytes()


def describe_versions(packages: Iterable[str], folders: Sequence[Path] | None = None) -> str:
    """Return the versions of Python and of the third-party packages that a value depends on.

    `folders`: the site-packages of another environment, instead of this process's path.
    """
    from importlib import metadata  # imported late: takes 12 ms

    versions = [f"Python {sys.version}"]
    search: dict[str, Any] = {}
    if folders is not None:
        search["path"] = [str(folder) for folder in folders]
    for package in packages:
        found = next(iter(metadata.distributions(name=package, **search)), None)
        versions.append(f"{package} {'absent' if found is None else found.version}")
    return ", ".join(versions)
