"""Modules and toggles that a test defines beside the toy release, and removes again."""

from __future__ import annotations

import importlib
import sys
import textwrap
import types
from pathlib import Path

from memory import write_toggle
from sglang import forms

from harness import toggles
from harness.patching.live_engine import engine


class Lab:
    """Modules and toggles that are defined in one test, beside the toy release."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.toggles = folder / "toggles"
        self.made: list[str] = []

    def module(self, name: str, text: str) -> types.ModuleType:
        path = Path(forms.__file__).parent / f"lab_{name}.py"
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
            module = sys.modules.pop(name, None)
            if module is not None:
                Path(str(module.__file__)).unlink(missing_ok=True)
            engine.sources.forget(name)
            engine._variants.clear()
            engine._plans.clear()
            delattr(sys.modules["sglang"], name.rpartition(".")[2])
        assert not engine._original_states
        assert not engine._applied_variants
