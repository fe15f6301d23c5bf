"""A folder of wheels from which releases are installed on a machine without a network."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from harness.errors import UnfixError
from harness.releases import install
from harness.releases.install import Say
from harness.releases.managed import Release

# A tag of a platform is matched as it is written, so all that a wheel may have are named.
GLIBC = (*range(5, 40), "2014", "2010", "1")
# What `./unfix` builds itself with, beside what it depends on.
BUILD = ("hatchling>=1.27", "editables>=0.3")


def fill(releases: Sequence[Release], folder: Path, python: str, say: Say) -> None:
    """Fetch what these releases are installed from, and unfix itself, for a Python."""
    if not re.fullmatch(r"3\.\d+", python):
        raise UnfixError(f"--python {python} is no version of Python: say 3.12")
    version = tuple(map(int, python.split(".")))
    if version not in install.PYTHONS:
        raise UnfixError(f"SGLang's wheels are for Python {install.pythons()}, not {python}")
    folder.mkdir(parents=True, exist_ok=True)
    say("fetching what unfix needs")
    _fetch(folder, python, [*_own(), *BUILD], "--only-binary :all:")
    say("fetching what the releases share")
    lacks = install.LACKS.get(version, {})
    for lock in (releases[0].base.lock, *(release.lock for release in releases)):
        if lock.stem != "base":
            say(f"fetching SGLang {lock.stem}")
        wanted = [one for one in install.requirements(lock) if one.name not in lacks]
        if releases[0].device == "cuda":
            wanted = [one for one in wanted if one.name not in OF_THE_MACHINE]
        _fetch(folder, python, list(map(str, wanted)), "--only-binary :all: --no-deps")


OF_THE_MACHINE = ("torch", "triton")


def _own() -> list[str]:
    needed = map(Requirement, importlib.metadata.requires("unfix") or ())
    return [str(one) for one in needed if "extra" not in str(one.marker or "")]


def _fetch(folder: Path, python: str, wanted: list[str], words: str) -> None:
    machine = platform.machine()
    tags = [f"manylinux_2_{one}" if isinstance(one, int) else f"manylinux{one}" for one in GLIBC]
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_{machine}")]
    target = ["--python-version", python, "--implementation", "cp", *platforms]
    install._pip(["download", *words.split(), *target, "-d", str(folder), *wanted])
