"""The environment in which a command, and every process below it, runs under toggles."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from harness import paths
from harness.patching import boot
from harness.releases import engines

SITE = paths.PACKAGE / "patching" / "site"


def find_first(environment: dict[str, str], python: Path, folder: Path) -> None:
    """Have a command find a release's python before any other."""
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', '')}"
    environment["VIRTUAL_ENV"] = str(folder)


def put_in(
    environment: dict[str, str],
    revert: Iterable[str],
    enable: Iterable[str],
    folders: list[Path],
    attestations: Path,
) -> None:
    """Have toggles applied in whatever imports SGLang, and attestations left in a folder."""
    environment.pop(boot.CARRIED, None)
    for name, ids in ((boot.REVERT, revert), (boot.ENABLE, enable)):
        environment.pop(name, None)
        if ids:
            environment[name] = ",".join(dict.fromkeys(ids))
    if folders:
        environment[boot.FOLDERS] = os.pathsep.join(str(folder.resolve()) for folder in folders)
    environment[boot.ATTESTATIONS] = str(attestations.resolve())
    engines.tell(environment)
    environment[boot.PLANNER_PATH] = os.environ.get("PYTHONPATH", "")
    rest = environment.get("PYTHONPATH")
    if str(SITE) not in (rest or "").split(os.pathsep):
        environment["PYTHONPATH"] = f"{SITE}{os.pathsep}{rest}" if rest else str(SITE)
