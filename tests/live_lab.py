"""Modules and toggles that a test adds to the toy release in its process, and removes again."""

from __future__ import annotations

import importlib
import sys
import textwrap
import types
from pathlib import Path

import sglang
from calling import copy_toy_release
from memory import write_toggle

from harness import toggles
from harness.patching.live_engine import engine
from harness.releases.source_trees import FolderSourceTree


class Lab:
    """Modules and toggles that are defined in one test, and found beside those of the toy release.

    They lie in a copy of the release: other processes digest the release itself meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.toggles = folder / "toggles"
        self.package = folder / "release" / "sglang"
        self.made: list[str] = []
        copy_toy_release(self.package)
        sglang.__path__.append(str(self.package))
        self.tree, engine.sources._tree = (
            engine.sources._tree,
            FolderSourceTree(self.package.parent, "toy"),
        )

    def module(self, name: str, text: str) -> types.ModuleType:
        path = self.package / f"lab_{name}.py"
        path.write_text(textwrap.dedent(text))
        self.made.append(f"sglang.lab_{name}")
        importlib.invalidate_caches()
        return importlib.import_module(f"sglang.lab_{name}")

    def toggle(self, name: str, module: str, target: str, fixed: str, buggy: str) -> None:
        place = f"sglang.lab_{module}{target and ':' + target}"
        write_toggle(self.toggles, name, place, fixed, buggy)
        toggles._load_catalogue.cache_clear()

    def revert(self, *names: str) -> toggles.ToggleContext:
        return toggles.reverted(*names, folders=(self.toggles,))

    def observe(self, *names: str) -> toggles.ToggleContext:
        return toggles.observed(*names, folders=(self.toggles,))

    def clean(self) -> None:
        for name in self.made:
            sys.modules.pop(name, None)
            engine.sources.forget(name)
            engine._variants.clear()
            engine._plans.clear()
            delattr(sglang, name.rpartition(".")[2])
        sglang.__path__.remove(str(self.package))
        engine.sources._tree = self.tree
        assert not engine._original_states
        assert not engine._applied_variants
