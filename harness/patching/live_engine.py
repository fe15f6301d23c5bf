"""Toggles in a living process: in and out in milliseconds, and exactly as it was afterwards.

What is active is a set, not a stack: toggles may be nested, may overlap in time between threads
and may end in any order. Each change of the set moves every module it touches straight from one
variant to the next; the empty set is the module as it was found.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.version import Version

from harness.core import paths
from harness.core.errors import PatchConflictError, PatchError
from harness.core.source_scopes import ModuleSource
from harness.patching import bootstrap, jit_kernels, live_functions
from harness.patching.attestation import AttestationRecorder
from harness.patching.constant_importers import find_importers
from harness.patching.import_hook import SGLANG_PACKAGE, PatchedLoader
from harness.patching.live_patches import LivePatch
from harness.patching.module_variants import ModuleVariant, ModuleVariantBuilder
from harness.patching.patch_plan import (
    PatchedModule,
    PatchPlan,
    SourceChange,
    compute_digest,
    make_plan,
)
from harness.releases import source_trees


class LoadedSources:
    """The release this process runs, with the text that it really runs."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleSource | None] = {}
        tree = source_trees.find_installed_tree()
        if tree is None:
            raise PatchError(
                f"{SGLANG_PACKAGE} is not installed in this interpreter ({sys.executable})"
            )
        self._tree = tree

    @property
    def version(self) -> Version | None:
        return self._tree.version

    def read(self, module: str) -> ModuleSource | None:
        if module not in self._modules:
            loader = getattr(getattr(sys.modules.get(module), "__spec__", None), "loader", None)
            found = self._tree.read(module)
            if found is not None and isinstance(loader, PatchedLoader):
                found = ModuleSource(module, found.path, loader.patched_text.text)
            self._modules[module] = found
        return self._modules[module]

    def modules(self) -> Iterator[str]:
        return self._tree.modules()

    def forget(self, module: str) -> None:
        """Read a module's source again: it may have been reloaded."""
        self._modules.pop(module, None)
        self._tree.forget(module)


class ToggleEngine:
    """The one place that knows which toggles are in, and what each thing was without them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._active_changes: Counter[SourceChange] = Counter()
        self._applied_variants: dict[str, ModuleVariant] = {}
        self._original_states: dict[tuple[Any, ...], tuple[LivePatch, Any]] = {}
        self._variants: dict[tuple[str, frozenset[SourceChange]], ModuleVariant] = {}
        self._plans: dict[SourceChange, PatchPlan] = {}
        self._sources: LoadedSources | None = None
        self._recorder: AttestationRecorder | None = None

    @property
    def sources(self) -> LoadedSources:
        if self._sources is None:
            self._sources = LoadedSources()
        return self._sources

    @property
    def recorder(self) -> AttestationRecorder:
        if self._recorder is None:
            folder = os.environ.get(bootstrap.ATTESTATIONS_VARIABLE)
            place = Path(folder) if folder else paths.state_folder() / "attestations" / "live"
            self._recorder = bootstrap.recorder or AttestationRecorder(place)
        return self._recorder

    @property
    def is_idle(self) -> bool:
        """Whether nothing is toggled."""
        return not self._active_changes

    def enter(self, choices: Iterable[SourceChange]) -> None:
        with self._lock:
            wanted = self._active_changes + Counter(choices)
            self._refuse_conflicting_changes(wanted)
            self._change_active_set(wanted)

    def import_targets(self, choices: Iterable[SourceChange]) -> None:
        """Have here what these would change; what does not import is met again by who enters it."""
        with self._lock, warnings.catch_warnings(action="ignore"):
            for choice in choices:
                with contextlib.suppress(Exception):
                    for module in self._list_modules(choice):
                        self._import_module(module)

    def leave(self, choices: Iterable[SourceChange]) -> None:
        with self._lock:
            self._change_active_set(self._active_changes - Counter(choices))

    def _refuse_conflicting_changes(self, active: Counter[SourceChange]) -> None:
        directions: dict[str, SourceChange] = {}
        for choice in active:
            other = directions.setdefault(choice.id, choice)
            if other is not choice and other != choice:
                raise PatchConflictError(f"{other} and {choice} are asked for at once")

    def _change_active_set(self, active: Counter[SourceChange]) -> None:
        """From the active set to the wanted one; nothing is touched unless all of it can be."""
        before, after = set(self._active_changes), set(active)
        if before != after:
            touched = [m for c in sorted(before ^ after, key=str) for m in self._list_modules(c)]
            prepared = {
                module: self._get_variant(
                    module, frozenset(c for c in after if module in self._list_modules(c))
                )
                for module in dict.fromkeys(touched)
            }
            if after - before:
                self._attest(after - before, prepared)
            self._switch_modules(prepared)
        self._active_changes = active

    def _switch_modules(self, variants: dict[str, ModuleVariant | None]) -> None:
        there = {module: self._applied_variants.get(module) for module in variants}
        try:
            for module, variant in variants.items():
                self._switch_module(module, variant)
        except BaseException:  # a Ctrl-C as well: put everything back, then let it go on
            for module, variant in there.items():
                self._switch_module(module, variant)
            raise

    def _list_modules(self, choice: SourceChange) -> tuple[str, ...]:
        return tuple(module.module for module in self._get_plan(choice).modules)

    def _get_plan(self, choice: SourceChange) -> PatchPlan:
        if choice not in self._plans:
            self._plans[choice] = make_plan([choice], self.sources, str(self.sources.version))
        return self._plans[choice]

    def _make_patched_module(self, name: str, choices: frozenset[SourceChange]) -> PatchedModule:
        """What these make of a module's source as it is now."""
        self.sources.forget(name)
        now = self.sources.read(name)
        if len(choices) == 1 and now is not None:  # its plan serves as long as the source does
            (only,) = choices
            known = next(each for each in self._get_plan(only).modules if each.module == name)
            if known.digest == compute_digest(now.text):
                return known
        plan = make_plan(sorted(choices, key=str), self.sources, str(self.sources.version))
        return next(each for each in plan.modules if each.module == name)

    def _get_variant(self, name: str, choices: frozenset[SourceChange]) -> ModuleVariant | None:
        if not choices:
            return None
        known = self._variants.get((name, choices))
        if known is not None and known.is_reusable:
            return known
        patched = self._make_patched_module(name, choices)
        module = self._import_module(name)
        source = self.sources.read(name)
        assert source is not None
        slots = [self.recorder.assign_slot(s.toggle, s.direction, s.target) for s in patched.sites]
        builder = ModuleVariantBuilder(
            module, source.text, patched, slots, self.recorder.count_run, self._get_original
        )
        variant = self._variants[(name, choices)] = builder.build()
        self.recorder.record_count_kinds(builder.compiled.kinds)
        return variant

    def _get_original(self, key: tuple[Any, ...], current_state: Any) -> Any:
        known = self._original_states.get(key)
        return current_state if known is None else known[1]

    def _import_module(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise PatchError(
                f"the target's module {name} does not import here: {type(error).__name__}: {error}"
            ) from error

    def _switch_module(self, name: str, variant: ModuleVariant | None) -> None:
        """Move one module to a variant; what neither holds any more goes back to what it was."""
        current = self._applied_variants.pop(name, None)
        for kernel, _ in current.watched_kernels if current else []:
            jit_kernels.unwatch_kernel(kernel)
        units = variant.patches if variant else []
        self._move_closures(current, variant)
        if variant is not None:
            self._applied_variants[name] = variant
        keys = {unit.key for unit in units}
        for unit in current.patches if current else []:
            if unit.key not in keys:
                self._restore_original(unit.key)
        for unit in units:
            if unit.key not in self._original_states:
                self._original_states[unit.key] = (unit, unit.read())
            unit.write(unit.new_state)
        for constant, old, new in current.constants if current else []:
            self._restore_constant(current, constant, old, new)
        for kernel, slots in variant.watched_kernels if variant else []:
            jit_kernels.watch_kernel(kernel, slots, self.recorder.count_run)

    def _restore_original(self, key: tuple[Any, ...]) -> None:
        """What it was before any toggle, or what the toggles of other modules still make of it."""
        if key not in self._original_states:
            return
        unit, state = self._original_states[key]
        unit.write(state)
        others = [u for v in self._applied_variants.values() for u in v.patches if u.key == key]
        for other in others:
            other.write(other.new_state)
        if not others:
            del self._original_states[key]

    def _restore_constant(
        self, variant: ModuleVariant | None, name: str, old: Any, new: Any
    ) -> None:
        """A constant that somebody imported while it was toggled."""
        assert variant is not None
        if vars(variant.module).get(name) is not old:
            return
        for holder, alias in find_importers(variant.module, name, new):
            if ("name", id(vars(holder)), alias) not in self._original_states:
                vars(holder)[alias] = old

    def _move_closures(self, current: ModuleVariant | None, variant: ModuleVariant | None) -> None:
        """Functions made by an outer one, before or during a toggle, change along with it."""
        for before, after in current.closures if current else []:
            for function in live_functions.find_closures(after):
                function.__code__ = before
        for before, after in variant.closures if variant else []:
            for function in live_functions.find_closures(before):
                function.__code__ = after

    def _attest(self, choices: set[SourceChange], modules: Iterable[str]) -> None:
        self.recorder.record_toggles(
            str(self.sources.version),
            [{"id": c.id, "direction": c.verb, "title": c.title} for c in sorted(choices, key=str)],
        )
        for module in modules:
            self.recorder.record_module(module)

    def reach(self, choices: Iterable[SourceChange]) -> int:
        """How often the code of these toggles has run in this process while they were in."""
        wanted = {(c.id, c.verb) for c in choices}
        return sum(n for s, n in self.recorder.list_counts() if (s.toggle, s.direction) in wanted)


engine = ToggleEngine()
