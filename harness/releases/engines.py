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

from harness import paths

VARIABLE = "UNFIX_HARNESS"
START = "unfix_start.py"
_HERE = paths.PACKAGE / "patching" / "site"


def tell(environment: MutableMapping[str, str]) -> None:
    """Have whatever runs in an environment use this checkout's engine, planner and home."""
    if paths.releases().is_dir():
        register()
    environment[VARIABLE] = str(paths.PACKAGE)
    environment["UNFIX_PLANNER"] = sys.executable
    environment["UNFIX_HOME"] = str(paths.workspace())


def folder() -> Path:
    """This checkout's folder among the engines."""
    name = hashlib.sha256(str(paths.PACKAGE).encode()).hexdigest()[:16]
    return paths.releases() / "engines" / name


def register(last: bool = False) -> None:
    """Have this checkout's engine known here; as the last one, if asked to or if it was not."""
    here = folder()
    if not _is_whole(here):
        here.mkdir(parents=True, exist_ok=True)
        made = here / f".{os.getpid()}-{threading.get_ident()}"
        made.write_text(sys.executable)
        os.replace(made, here / "planner")
        made.symlink_to(paths.PACKAGE)
        os.replace(made, here / "harness")
        last = True
    if last:
        os.utime(here)


def _is_whole(here: Path) -> bool:
    try:
        planner = Path((here / "planner").read_text())
        return (here / "harness").readlink() == paths.PACKAGE and planner.exists()
    except OSError:
        return False


def start_files(behind: Path | None, beside: Sequence[str] = ()) -> dict[str, str]:
    """What lies in an environment's site-packages for it to find an engine, by name.

    With the site-packages that stand behind it, and the folders of a torch that it shares; the
    base has none behind it, and no toggles.
    """
    lines = [*beside, f"import os; exec({(_HERE / 'unfix_path.py').read_text()!r}, {{}})\n"]
    if behind is None:
        return {"unfix.pth": "\n".join(lines)}
    # From site-packages, so that a home may be moved or copied.
    back = os.path.join("..", "..", "..", "..", *behind.parts[-4:])
    return {"unfix.pth": "\n".join([back, *lines]), START: (_HERE / START).read_text()}


def digest() -> str:
    """Of all that an environment holds of ours."""
    texts = ((_HERE / name).read_bytes() for name in ("unfix_path.py", START))
    return hashlib.sha256(b"".join(texts)).hexdigest()
