"""`pytest -p without_packages`: a Python that lacks the packages named in WITHOUT_PACKAGES."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any


class MissingPackages:
    """An import finder in front of the others: the packages cannot be found."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, MissingPackages(set(os.environ["WITHOUT_PACKAGES"].split(","))))
