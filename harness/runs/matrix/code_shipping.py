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

from harness.core import paths
from harness.releases import checkouts

HOME_VARIABLE = "UNFIX_HOME"  # on the node: where the code and the releases are kept
SHIPPED_VARIABLE = "UNFIX_SHIPPED"
EXCLUDED_PATHS = [
    ".git",
    ".venv",
    ".venv.lock",
    ".releases",
    ".unfix",
    ".gpu",
    "reports/out",
    "**/__pycache__",
]


def build_runtime_environment() -> dict[str, Any]:
    """What Ray is told: this code, and the packages that it needs."""
    checkout = paths.project_folder() != paths.HARNESS_FOLDER / "carried"
    code: dict[str, Any] = {"working_dir": str(paths.project_folder()), "excludes": EXCLUDED_PATHS}
    if not checkout:
        code = {"py_modules": [str(paths.HARNESS_FOLDER)]}
    # Only where a cell goes: a head node may run none.
    later = {"eager_install": False}
    return {
        **code,
        "pip": list_requirements(),
        "env_vars": {SHIPPED_VARIABLE: "1"},
        "config": later,
    }


def list_requirements() -> list[str]:
    """What this project requires, without its extras."""
    wanted = metadata.requires("unfix") or []
    return sorted(one for one in wanted if "extra ==" not in one)


def is_shipped() -> bool:
    """Whether Ray brought the code that runs here."""
    return SHIPPED_VARIABLE in os.environ


@contextlib.contextmanager
def install_shipped_code() -> Iterator[None]:
    """The code at its place on this node, for as long as something runs from it."""
    home = Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".cache" / "unfix").resolve()
    home.mkdir(parents=True, exist_ok=True)
    brought = paths.HARNESS_FOLDER.parent
    with _lock_checkout(home / "checkout.lock", home / "checkout", brought):
        os.environ[HOME_VARIABLE] = str(home)
        # Not the folder that Ray takes away: what a release's processes import outlives it.
        others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        gone = (brought, home / "checkout")
        kept = [one for one in others if one and Path(one).resolve() not in gone]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(home / "checkout"), *kept])
        os.environ["UNFIX_PLANNER"] = sys.executable
        os.environ.pop(
            checkouts.HARNESS_VARIABLE, None
        )  # the driver's; each command here names its own
        yield


@contextlib.contextmanager
def _lock_checkout(lock: Path, checkout: Path, shipped_code: Path) -> Iterator[None]:
    """Several attempts of one code at a time; another code waits until they are done."""
    with lock.open("a") as file:
        while True:
            fcntl.flock(file, fcntl.LOCK_SH)
            if _is_current(checkout, shipped_code):
                break
            fcntl.flock(file, fcntl.LOCK_EX)  # lets go of the other first: look again
            if not _is_current(checkout, shipped_code):
                _copy_code(checkout, shipped_code)
        yield


def _locate_mark(checkout: Path) -> Path:
    return checkout / "shipped-from"


def _is_current(checkout: Path, shipped_code: Path) -> bool:
    mark = _locate_mark(checkout)
    # Ray names the folder by a digest of what is in it.
    return mark.is_file() and mark.read_text() == shipped_code.name


def _copy_code(checkout: Path, shipped_code: Path) -> None:
    aside = checkout.with_name("checkout.new")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(shipped_code, aside, symlinks=True)
    _locate_mark(aside).write_text(shipped_code.name)
    shutil.rmtree(checkout, ignore_errors=True)
    os.replace(aside, checkout)
