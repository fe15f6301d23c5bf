"""The wheel's package is called `unfix`: a project's own `harness` must not be shadowed by it.

A checkout has its engine in `harness`, which is the same package. Each Python file is copied with
the other name; nothing else differs.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The package in code, in paths and as a module's name; "the harness" is the English word.
_PACKAGE = re.compile(r"(?<!the )\bharness\b(?!-)")
_CARRIED = ("toggles", "findings", "suites", "fixtures", "reports", "bench/recorded/proofs")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "out", "carried")


class RenamedPackage(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root, self._copy = Path(self.root), tempfile.TemporaryDirectory()
        package = Path(self._copy.name) / "unfix"
        shutil.copytree(root / "harness", package, ignore=_LEFT_OUT)
        for name in _CARRIED:
            shutil.copytree(root / name, package / "carried" / name, ignore=_LEFT_OUT)
        for file in package.rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            file.write_text(_PACKAGE.sub("unfix", text), encoding="utf-8")
        build_data["force_include"][str(package)] = "unfix"
        core = self.metadata.core
        for table in (core.scripts, *core.entry_points.values()):
            for name, target in list(table.items()):
                del table[name]
                table[_PACKAGE.sub("unfix", name)] = _PACKAGE.sub("unfix", target)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._copy.cleanup()
