"""One digest of the project's own code, for every cache on disk.

A cached value is valid as long as the code that computed it is the same. Code of one wing uses code
of that wing and of the wings below it and no other (`tests/test_layers.py` checks it), so a
cache names the highest wing that its values depend on. Example: a program compiled for the CPU
depends on `kernels`; changing a byte in `harness/core/cache.py` or `harness/kernels/cpu/folds.py`
makes it a miss, changing one in `harness/cli` does not.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

from harness.core import paths

# From the lowest wing to the highest.
WINGS = (
    "core",
    "store",
    "releases",
    "fixes",
    "patching",
    "kernels",
    "startup",
    "guards",
    "matrices",
    "workers",
    "runs",
    "cli",
)
_SUFFIXES = {".py", ".yaml"}


def compute_digest(*parts: str | bytes) -> str:
    """Hash the parts, and where one ends and the next begins."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()[:32]


@functools.cache
def digest_code(wing: str) -> str:
    """Hash the code of a wing and of all wings below it, as it is at the first call.

    Call this while the module that uses the digest is imported: a running process executes the code
    that it imported, whatever is edited on disk afterwards.
    """
    parts: list[str | bytes] = []
    for name in WINGS[: WINGS.index(wing) + 1]:
        folder = paths.HARNESS_FOLDER / name
        for file in sorted(folder.rglob("*")):
            if file.suffix in _SUFFIXES:
                parts += [str(file.relative_to(paths.HARNESS_FOLDER)), file.read_bytes()]
    return compute_digest(*parts)


def describe_versions(packages: Iterable[str]) -> str:
    """Return the installed versions of third-party packages that a value depends on."""
    from importlib import metadata  # imported late: takes 12 ms

    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{package} absent")
    return ", ".join(versions)
