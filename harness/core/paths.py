"""The folders of the project's data, of the managed releases, and of the files of runs."""

from __future__ import annotations

import os
from pathlib import Path

HARNESS_FOLDER = Path(__file__).resolve().parent.parent
CARRIED_FOLDER = HARNESS_FOLDER / "carried"  # toggles, suites and fixtures in a wheel


def project_folder() -> Path:
    """Return the folder of toggles/, suites/ and fixtures/: the checkout, or inside the wheel."""
    return CARRIED_FOLDER if CARRIED_FOLDER.is_dir() else HARNESS_FOLDER.parent


def workspace_folder() -> Path:
    """Return the parent of .releases/ and .unfix/: the checkout, or a wheel's current folder.

    A hook of pre-commit runs in the repository under check, so its files go to the user's cache.
    """
    chosen = os.environ.get("UNFIX_HOME")
    if chosen:
        return Path(chosen).resolve()
    if is_checkout():
        return HARNESS_FOLDER.parent
    if "PRE_COMMIT" in os.environ:  # pre-commit sets it for its hooks
        return user_cache_folder()
    return Path.cwd()


def is_checkout() -> bool:
    """Return whether this code runs from a checkout, and not from an installed wheel."""
    return project_folder() == HARNESS_FOLDER.parent


def user_cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "unfix"


def toggles_folder() -> Path:
    return project_folder() / "toggles"


def proposed_folder() -> Path:
    """Return the folder of toggles whose fix SGLang does not have yet."""
    return toggles_folder() / "proposed"


_END_OF_PATH = frozenset(" \t\n\r\"'`:;,=()[]{}<>\\")  # in messages, and in JSON that quotes them


def releases_folder() -> Path:
    return workspace_folder() / ".releases"


def shorten_release_paths(text: str) -> str:
    """Replace each path of a `.releases` folder in a text by its name, links to it among them.

    A message of a release must not depend on the machine: a compiler names the files that it read,
    and a module may come from the builds of another checkout.
    """
    text = text.replace(f"{releases_folder().resolve()}/", ".releases/")
    *fronts, rest = text.split("/.releases/")
    for number, front in enumerate(fronts):
        start = len(front)
        while start and front[start - 1] not in _END_OF_PATH:
            start -= 1
        if front[start - 1 : start] == "\\":  # in JSON a new line is written with a letter
            start += front[start : start + 1] in ("n", "r", "t")
        is_absolute = front[start : start + 1] in ("", "/")
        fronts[number] = front[:start] + ".releases/" if is_absolute else front + "/.releases/"
    return "".join(fronts) + rest


def cuda_builds_folder() -> Path:
    """Return the folder of built CUDA modules, which checkouts share as they share releases.

    Its links are resolved: SGLang never finds a build again below a folder that is one.
    """
    return releases_folder().resolve() / "cuda-builds"


def state_folder() -> Path:
    """Return the folder of the files of runs: plans, attestations, caches, the store."""
    return workspace_folder() / ".unfix"
