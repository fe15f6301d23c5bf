"""Where a process may import SGLang from: a run on a release must not test another SGLang.

Invariant: in a process that is to run a release, SGLang and the packages below it come from the
folders of that release, or the process ends with 3 and names what it found. Python searches
PYTHONPATH and the working folder first, so a checkout there would be tested under the release's
name. Example: with `PYTHONPATH=/src/sglang/python`, `prove --release 0.5.23` ends and names
/src/sglang/python. Standard library and `core/errors` alone: this is
imported before the program runs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.core.errors import NotReadyError

ORIGINS_VARIABLE = "UNFIX_ORIGINS"  # JSON: the release's name, and folders by package
PACKAGES = ("sglang", "sgl_kernel", "triton", "torch")


def require_origins(
    environment: MutableMapping[str, str], release: str, folders: Mapping[str, Iterable[Path]]
) -> None:
    """Have the processes of an environment import packages from these folders alone.

    What the environment itself puts first is refused here, before any of them starts.
    """
    listed = {name: [str(folder) for folder in places] for name, places in folders.items()}
    environment[ORIGINS_VARIABLE] = json.dumps([release, listed])
    searched = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for name in PACKAGES:
        spec = PathFinder.find_spec(name, searched)
        _refuse_other(name, _locate_package(spec), release, listed.get(name, ()))


def check_origins() -> None:
    """Raise NotReadyError if a package that this process would import, or has, is another's."""
    for name in PACKAGES:
        _check_package(name)


def install_check(exit_process: Callable[[str], object]) -> None:
    """Check each package where it is imported, from here on; another's ends the process."""
    if os.environ.get(ORIGINS_VARIABLE):
        sys.meta_path.insert(0, _OriginFinder(exit_process))


class _OriginFinder:
    """Finds no module: it looks at what the other finders will find."""

    def __init__(self, exit_process: Callable[[str], object]) -> None:
        self._exit_process = exit_process
        self._is_searching = False

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> None:
        if name in PACKAGES and not self._is_searching:
            self._is_searching = True
            try:
                _check_package(name)
            except NotReadyError as error:
                self._exit_process(str(error))
            finally:
                self._is_searching = False


def _check_package(name: str) -> None:
    release, folders = json.loads(os.environ.get(ORIGINS_VARIABLE) or '["", {}]')
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module that was put into sys.modules without a spec
        return
    _refuse_other(name, _locate_package(spec), release, folders.get(name, ()))


def _locate_package(spec: ModuleSpec | None) -> Path | None:
    """Return the package's folder or file; None without one."""
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec is not None else []
    return next((Path(place).resolve() for place in places if place and os.sep in place), None)


def _refuse_other(name: str, found: Path | None, release: str, folders: Iterable[str]) -> None:
    expected = [Path(folder).resolve() for folder in folders]
    if expected and found is not None and not any(one in found.parents for one in expected):
        raise NotReadyError(
            f"{name} would be imported from {found.parent}, which is no folder of SGLang "
            f"{release}: PYTHONPATH or the working folder puts it first. Results would stand "
            "under a wrong name: take it out, or test that SGLang with --release current"
        )
