"""This checkout on a node that has Ray and nothing of ours.

Ray carries the code and the packages to the node, into a folder that it takes away again. Releases
refer to the code that installed them, for longer than that: so the code is copied once more, to a
folder of the node's own that keeps its releases from run to run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import paths
from harness.releases import engines

HOME = "UNFIX_HOME"  # on the node: where the code and the releases are kept
ABROAD = "UNFIX_SHIPPED"
STAYS = [
    ".git",
    ".venv",
    ".venv.lock",
    ".releases",
    ".unfix",
    ".gpu",
    "reports/out",
    "**/__pycache__",
]


def environment() -> dict[str, Any]:
    """What Ray is told: this code, and the packages that it needs."""
    checkout = paths.project() != paths.PACKAGE / "carried"
    code: dict[str, Any] = {"working_dir": str(paths.project()), "excludes": STAYS}
    if not checkout:
        code = {"py_modules": [str(paths.PACKAGE)]}
    # Only where a cell goes: a head node may run none.
    later = {"eager_install": False}
    return {**code, "pip": packages(), "env_vars": {ABROAD: "1"}, "config": later}


def packages() -> list[str]:
    """What this project requires, without its extras."""
    wanted = metadata.requires("unfix") or []
    return sorted(one for one in wanted if "extra ==" not in one)


def abroad() -> bool:
    """Whether Ray brought the code that runs here."""
    return ABROAD in os.environ


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """The code at its place on this node, for as long as something runs from it."""
    home = Path(os.environ.get(HOME) or Path.home() / ".cache" / "unfix").resolve()
    home.mkdir(parents=True, exist_ok=True)
    brought = paths.PACKAGE.parent
    with _held(home / "checkout.lock", home / "checkout", brought):
        os.environ[HOME] = str(home)
        # Not the folder that Ray takes away: what a release's processes import outlives it.
        others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        gone = (brought, home / "checkout")
        kept = [one for one in others if one and Path(one).resolve() not in gone]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(home / "checkout"), *kept])
        os.environ["UNFIX_PLANNER"] = sys.executable
        os.environ.pop(engines.VARIABLE, None)  # the driver's; each command here names its own
        yield


@contextlib.contextmanager
def _held(lock: Path, place: Path, brought: Path) -> Iterator[None]:
    """Several attempts of one code at a time; another code waits until they are done."""
    with lock.open("a") as file:
        while True:
            fcntl.flock(file, fcntl.LOCK_SH)
            if _is(place, brought):
                break
            fcntl.flock(file, fcntl.LOCK_EX)  # lets go of the other first: look again
            if not _is(place, brought):
                _put(place, brought)
        yield


def _mark(place: Path) -> Path:
    return place / "shipped-from"


def _is(place: Path, brought: Path) -> bool:
    mark = _mark(place)
    # Ray names the folder by a digest of what is in it.
    return mark.is_file() and mark.read_text() == brought.name


def _put(place: Path, brought: Path) -> None:
    aside = place.with_name("checkout.new")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(brought, aside, symlinks=True)
    _mark(aside).write_text(brought.name)
    shutil.rmtree(place, ignore_errors=True)
    os.replace(aside, place)
