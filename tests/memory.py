"""A release whose modules are defined in the test, and toggles built without a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from harness.core.cpp_scopes import CppSource
from harness.core.cpp_tokens import is_cpp_path
from harness.core.source_scopes import ModuleSource
from harness.fixes.patch_plan import Direction, ToggleChoice, make_plan
from harness.fixes.registry.schema import DeviceKind, Symptom, Toggle, ToggleEdit, ToggleVariant

Pairs = tuple[tuple[str, str], ...]


class Memory:
    """Sources in memory; `version` is None for a checkout without a version."""

    def __init__(self, modules: dict[str, str], version: str | None = "0.5.9") -> None:
        self.texts = modules
        self.version = Version(version) if version else None

    def read(self, module: str) -> ModuleSource | None:
        text = self.texts.get(module)
        if is_cpp_path(module) and text is not None:
            return CppSource(module, module, text)
        return None if text is None else ModuleSource(module, f"{module}.py", text)

    def modules(self) -> Iterator[str]:
        return (name for name in self.texts if not is_cpp_path(name))

    def cpp_sources(self) -> Iterator[str]:
        return filter(is_cpp_path, self.texts)


def write_toggle(
    folder: Path,
    name: str,
    target: str,
    fixed: str,
    buggy: str,
    releases: str = ">=1",
    devices: tuple[str, ...] = ("cpu",),
) -> Path:
    """Write a file of one toggle as JSON, which is YAML, too."""
    edit = {"fixed": fixed, "buggy": buggy}
    story = {"title": "t", "family": "toy", "symptom": "crash", "devices": devices}
    variant = {"releases": releases, "target": target, "edits": [edit]}
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({"id": name, **story, "variants": [variant]}))
    return file


def make_variant(pairs: Pairs, target: str = "m:f", releases: str = ">=0") -> ToggleVariant:
    edits = tuple(ToggleEdit(fixed, buggy) for fixed, buggy in pairs)
    return ToggleVariant(releases=releases, edits=edits, target=target)


def make_toggle(*variants: ToggleVariant, name: str = "some-fix") -> Toggle:
    title, devices = "Something is off by one", (DeviceKind.CPU,)
    return Toggle(name, title, "things", Symptom.CRASH, devices, variants)


def make_edit_toggle(fixed: str, buggy: str, target: str = "m:f", name: str = "some-fix") -> Toggle:
    return make_toggle(make_variant(((fixed, buggy),), target), name=name)


def patch_module(toggle: Toggle, direction: Direction, text: str) -> str:
    """Return the text of module `m` after one toggle."""
    plan = make_plan([ToggleChoice(toggle, direction)], Memory({"m": text}), "0.5.9")
    return plan.modules[0].text


def revert_toggle(toggle: Toggle, text: str) -> str:
    return patch_module(toggle, Direction.REVERT, text)


def enable_toggle(toggle: Toggle, text: str) -> str:
    return patch_module(toggle, Direction.ENABLE, text)
