"""Installs this checkout on a node that has Ray alone (`--ship`).

Ray copies the code and the packages to a folder on the node and deletes it afterwards. An installed
release refers to the code that installed it for longer than that, so the code is copied once more,
to the folder on the node that keeps the releases between runs.
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

HOME_VARIABLE = "UNFIX_HOME"  # a node's folder of the code and the releases
SHIPPED_VARIABLE = "UNFIX_SHIPPED"
EXCLUDED_PATHS = ".git .venv .venv.lock .releases .unfix .gpu reports/out **/__pycache__".split()


def build_runtime_environment() -> dict[str, Any]:
    """Build Ray's `runtime_env`: this code, and the packages that it needs."""
    code: dict[str, Any] = {"working_dir": str(paths.project_folder()), "excludes": EXCLUDED_PATHS}
    if paths.project_folder() == paths.HARNESS_FOLDER / "carried":  # installed from a wheel
        code = {"py_modules": [str(paths.HARNESS_FOLDER)]}
    variables = {SHIPPED_VARIABLE: "1"}
    lazy = {"eager_install": False}  # only on nodes that run a cell; a head node may run none
    return {**code, "pip": list_requirements(), "env_vars": variables, "config": lazy}


def list_requirements() -> list[str]:
    """List the requirements of this project, without its extras."""
    requirements = metadata.requires("unfix") or []
    return sorted(line for line in requirements if "extra ==" not in line)


def is_shipped() -> bool:
    """Return whether Ray copied the running code to this machine."""
    return SHIPPED_VARIABLE in os.environ


@contextlib.contextmanager
def install_shipped_code() -> Iterator[None]:
    """Copy the code to the node's own folder, and lock it while the context lasts."""
    home = Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".cache" / "unfix").resolve()
    home.mkdir(parents=True, exist_ok=True)
    shipped_code, checkout = paths.HARNESS_FOLDER.parent, home / "checkout"
    with _lock_checkout(home / "checkout.lock", checkout, shipped_code):
        os.environ[HOME_VARIABLE] = str(home)
        # The processes of a release outlive the folder that Ray deletes: they import from the copy.
        folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        own = (shipped_code, checkout)
        others = [folder for folder in folders if folder and Path(folder).resolve() not in own]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(checkout), *others])
        os.environ["UNFIX_PLANNER"] = sys.executable
        os.environ.pop(checkouts.HARNESS_VARIABLE, None)  # names the driver's own checkout
        yield


@contextlib.contextmanager
def _lock_checkout(lock: Path, checkout: Path, shipped_code: Path) -> Iterator[None]:
    """Lock the checkout: attempts with the same code share it; other code waits for them."""
    with lock.open("a") as file:
        while True:
            fcntl.flock(file, fcntl.LOCK_SH)
            if _is_current(checkout, shipped_code):
                break
            fcntl.flock(file, fcntl.LOCK_EX)  # releases the shared lock first, so check again
            if not _is_current(checkout, shipped_code):
                _copy_code(checkout, shipped_code)
        yield


def _locate_mark(checkout: Path) -> Path:
    return checkout / "shipped-from"


def _is_current(checkout: Path, shipped_code: Path) -> bool:
    mark = _locate_mark(checkout)
    # Ray names the folder by a digest of its content.
    return mark.is_file() and mark.read_text() == shipped_code.name


def _copy_code(checkout: Path, shipped_code: Path) -> None:
    aside = checkout.with_name("checkout.new")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(shipped_code, aside, symlinks=True)
    _locate_mark(aside).write_text(shipped_code.name)
    shutil.rmtree(checkout, ignore_errors=True)
    os.replace(aside, checkout)
