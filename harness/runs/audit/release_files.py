"""The sources of a package with Triton kernels: of SGLang, or of any other, in a folder or a wheel.

A location is a wheel, or the folder that holds packages (site-packages, `src` of a checkout). The
packages in it are those that mention Triton; where SGLang is among them, it alone is read.
"""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Iterator
from pathlib import Path

from harness.core.errors import NotReadyError, UnfixError

PACKAGE = "sglang"
FileTree = Path | zipfile.Path
_SOURCE_FOLDERS = ("src", "python", "lib", "")  # of a checkout
ANALYSIS_PACKAGES = ("triton", "llvmlite", "torch", "numpy")  # what the audit stands on
_NO_PACKAGES = frozenset(
    (*_SOURCE_FOLDERS, *"tests test docs examples benchmark benchmarks build dist scripts".split())
)


def open_location(location: Path) -> FileTree:
    return zipfile.Path(location) if location.suffix == ".whl" else location


def iterate_sources(location: Path) -> Iterator[tuple[str, bytes]]:
    """Iterate the packages' files, by their paths in the location."""
    packages = find_packages(location)
    if location.suffix == ".whl":
        with zipfile.ZipFile(location) as wheel:
            for name in sorted(wheel.namelist()):
                if name.partition("/")[0] in packages and name.endswith(".py"):
                    yield name, wheel.read(name)
        return
    for package in packages:
        for file in filter(Path.is_file, sorted((location / package).rglob("*.py"))):
            yield file.relative_to(location).as_posix(), file.read_bytes()


@functools.cache
def find_packages(location: Path) -> tuple[str, ...]:
    """Find the packages of a location that mention Triton; SGLang alone, if it is there."""
    root = open_location(location)
    folders = {
        folder.name: folder
        for folder in root.iterdir()
        if folder.is_dir() and folder.name.isidentifier() and folder.name not in _NO_PACKAGES
    }
    if PACKAGE in folders:
        return (PACKAGE,)
    return tuple(sorted(name for name, folder in folders.items() if _mentions_triton(folder)))


def _mentions_triton(folder: FileTree) -> bool:
    for entry in folder.iterdir():
        if entry.is_dir():
            if _mentions_triton(entry):
                return True
        elif entry.name.endswith(".py") and entry.is_file() and b"triton" in entry.read_bytes():
            return True
    return False


def find_location(path: Path) -> Path:
    """Find the location of the packages at a path: a wheel, a checkout, a package's own folder."""
    if path.suffix == ".whl" and path.is_file():
        if not zipfile.is_zipfile(path):
            raise NotReadyError(f"{path} is not a whole wheel: download it again")
        return path
    if not path.is_dir():
        raise UnfixError(f"there is no folder or wheel {path}")
    if (path / "__init__.py").is_file():
        while (path / "__init__.py").is_file():
            path = path.parent
        return path
    for name in _SOURCE_FOLDERS:
        if (path / name).is_dir() and find_packages(path / name):
            return path / name
    raise UnfixError(
        f"no package in {path} mentions Triton: name a wheel, a checkout, or the folder of a "
        "package with @triton.jit kernels"
    )
