"""The environment in which a command, and every process below it, runs under toggles."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from harness.core import paths
from harness.patching import bootstrap
from harness.releases import checkouts

STARTUP_FOLDER = paths.HARNESS_FOLDER / "startup"


def put_python_first(environment: dict[str, str], python: Path, folder: Path) -> None:
    """Have a command find a release's python before any other."""
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', '')}"
    environment["VIRTUAL_ENV"] = str(folder)


def set_toggle_variables(
    environment: dict[str, str],
    revert: Iterable[str],
    enable: Iterable[str],
    folders: list[Path],
    attestations: Path,
) -> None:
    """Have toggles applied in whatever imports SGLang, and attestations left in a folder."""
    environment.pop(bootstrap.CARRIED_REVERT_VARIABLE, None)
    for name, ids in ((bootstrap.REVERT_VARIABLE, revert), (bootstrap.ENABLE_VARIABLE, enable)):
        environment.pop(name, None)
        if ids:
            environment[name] = ",".join(dict.fromkeys(ids))
    if folders:
        environment[bootstrap.FOLDERS_VARIABLE] = os.pathsep.join(
            str(folder.resolve()) for folder in folders
        )
    environment[bootstrap.ATTESTATIONS_VARIABLE] = str(attestations.resolve())
    checkouts.set_checkout_variables(environment)
    environment[bootstrap.PLANNER_PATH_VARIABLE] = os.environ.get("PYTHONPATH", "")
    rest = environment.get("PYTHONPATH")
    if str(STARTUP_FOLDER) not in (rest or "").split(os.pathsep):
        environment["PYTHONPATH"] = (
            f"{STARTUP_FOLDER}{os.pathsep}{rest}" if rest else str(STARTUP_FOLDER)
        )
