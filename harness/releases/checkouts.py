"""The checkouts of unfix that share a folder of releases, and the start files that choose one.

Each checkout has a folder in `.releases/engines`, with a link to its `harness` and the path of its
Python. A process of a release uses the checkout that `UNFIX_HARNESS` names; every command of unfix
sets it for the processes that it starts. Without it, the process uses the checkout that was
registered last and still exists. `startup/unfix_path.py` makes this choice.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from harness.core import paths
from harness.core.files import write_atomically

HARNESS_VARIABLE = "UNFIX_HARNESS"
START_MODULE = "unfix_start.py"
_STARTUP_FOLDER = paths.HARNESS_FOLDER / "startup"


def set_checkout_variables(environment: MutableMapping[str, str]) -> None:
    """Set the variables that make a process use this checkout, its planner and its workspace."""
    if paths.releases_folder().is_dir():
        register_checkout()
    environment[HARNESS_VARIABLE] = str(paths.HARNESS_FOLDER)
    environment["UNFIX_PLANNER"] = sys.executable
    environment["UNFIX_HOME"] = str(paths.workspace_folder())


def get_checkout_folder() -> Path:
    """Return the folder that registers this checkout."""
    name = hashlib.sha256(str(paths.HARNESS_FOLDER).encode()).hexdigest()[:16]
    return paths.releases_folder() / "engines" / name


def register_checkout(make_newest: bool = False) -> None:
    """Register this checkout; a new registration, or `make_newest`, makes it the last one."""
    folder = get_checkout_folder()
    if not _is_registered(folder):
        write_atomically(folder / "planner", sys.executable)
        link = folder / f".{os.getpid()}-{threading.get_ident()}"
        link.symlink_to(paths.HARNESS_FOLDER)
        os.replace(link, folder / "harness")
        make_newest = True
    if make_newest:
        os.utime(folder)


def _is_registered(checkout_folder: Path) -> bool:
    try:
        planner = Path((checkout_folder / "planner").read_text())
        return (checkout_folder / "harness").readlink() == paths.HARNESS_FOLDER and planner.exists()
    except OSError:
        return False


def make_start_files(
    base_site_packages: Path | None, torch_folders: Sequence[str] = ()
) -> dict[str, str]:
    """Return the start files of an environment, by their names in its site-packages.

    They put the base's site-packages and the folders of a shared torch on the path, and find a
    checkout. The base itself has no base, and its processes run without toggles.
    """
    lines = [
        *torch_folders,
        f"import os; exec({(_STARTUP_FOLDER / 'unfix_path.py').read_text()!r}, {{}})\n",
    ]
    if base_site_packages is None:
        return {"unfix.pth": "\n".join(lines)}
    # A path relative to site-packages stays valid when the home is moved or copied.
    back = os.path.join("..", "..", "..", "..", *base_site_packages.parts[-4:])
    return {
        "unfix.pth": "\n".join([back, *lines]),
        START_MODULE: (_STARTUP_FOLDER / START_MODULE).read_text(),
    }


def compute_start_digest() -> str:
    """Hash the start files' templates."""
    texts = ((_STARTUP_FOLDER / name).read_bytes() for name in ("unfix_path.py", START_MODULE))
    return hashlib.sha256(b"".join(texts)).hexdigest()
