"""Whose engine runs in a release's processes: any number of checkouts share the releases.

Each checkout that uses the releases here has a folder in `.releases/engines`, with a link to its
`harness` and the name of the Python that plans for it. A process of a release takes the engine
that its environment names, as every command of unfix does for what it starts, or else the one that
was registered last of those that are still there. `unfix_path.py` chooses.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from harness.core import paths

HARNESS_VARIABLE = "UNFIX_HARNESS"
START_MODULE = "unfix_start.py"
_STARTUP_FOLDER = paths.HARNESS_FOLDER / "startup"


def set_checkout_variables(environment: MutableMapping[str, str]) -> None:
    """Have whatever runs in an environment use this checkout's engine, planner and home."""
    if paths.releases_folder().is_dir():
        register_checkout()
    environment[HARNESS_VARIABLE] = str(paths.HARNESS_FOLDER)
    environment["UNFIX_PLANNER"] = sys.executable
    environment["UNFIX_HOME"] = str(paths.workspace_folder())


def get_checkout_folder() -> Path:
    """This checkout's folder among the engines."""
    name = hashlib.sha256(str(paths.HARNESS_FOLDER).encode()).hexdigest()[:16]
    return paths.releases_folder() / "engines" / name


def register_checkout(make_newest: bool = False) -> None:
    """Have this checkout's engine known here; as the last one, if asked to or if it was not."""
    here = get_checkout_folder()
    if not _is_registered(here):
        here.mkdir(parents=True, exist_ok=True)
        made = here / f".{os.getpid()}-{threading.get_ident()}"
        made.write_text(sys.executable)
        os.replace(made, here / "planner")
        made.symlink_to(paths.HARNESS_FOLDER)
        os.replace(made, here / "harness")
        make_newest = True
    if make_newest:
        os.utime(here)


def _is_registered(checkout_folder: Path) -> bool:
    try:
        planner = Path((checkout_folder / "planner").read_text())
        return (checkout_folder / "harness").readlink() == paths.HARNESS_FOLDER and planner.exists()
    except OSError:
        return False


def make_start_files(
    base_site_packages: Path | None, torch_folders: Sequence[str] = ()
) -> dict[str, str]:
    """What lies in an environment's site-packages for it to find an engine, by name.

    With the site-packages that stand behind it, and the folders of a torch that it shares; the
    base has none behind it, and no toggles.
    """
    lines = [
        *torch_folders,
        f"import os; exec({(_STARTUP_FOLDER / 'unfix_path.py').read_text()!r}, {{}})\n",
    ]
    if base_site_packages is None:
        return {"unfix.pth": "\n".join(lines)}
    # From site-packages, so that a home may be moved or copied.
    back = os.path.join("..", "..", "..", "..", *base_site_packages.parts[-4:])
    return {
        "unfix.pth": "\n".join([back, *lines]),
        START_MODULE: (_STARTUP_FOLDER / START_MODULE).read_text(),
    }


def compute_start_digest() -> str:
    """Of all that an environment holds of ours."""
    texts = ((_STARTUP_FOLDER / name).read_bytes() for name in ("unfix_path.py", START_MODULE))
    return hashlib.sha256(b"".join(texts)).hexdigest()
