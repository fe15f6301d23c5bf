"""Live toggles: a running process switches them in milliseconds, and restores the exact original.

The active toggles are a set, not a stack: they may nest, may overlap in time between threads and
may end in any order. Each change of the set moves every module it affects directly from one
variant to the next.

Invariant: under the empty set every module is identical to what it was before. Example: enter A,
enter B, leave A, leave B moves module m through the variants {A}, {A, B}, {B} and back to the
original.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.version import Version

from harness.core import paths
from harness.core.code_digest import compute_digest
from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import PatchError
from harness.core.source_scopes import ModuleSource
from harness.fixes.patch_plan import (
    PatchedModule,
    PatchPlan,
    SourceChange,
    make_plan,
    refuse_conflicting_changes,
)
from harness.patching import bootstrap, cuda_modules, import_runs, live_functions
from harness.patching.attestation import AttestationRecorder
from harness.patching.constant_importers import find_importers
from harness.patching.cuda_sources import PATCHES, CudaSourcePatch, attest_patched_source
from harness.patching.import_hook import SGLANG_PACKAGE, PatchedLoader
from harness.patching.live_limits import COPIES, refuse_results_of_imports
from harness.patching.live_patches import LivePatch
from harness.patching.module_variants import ModuleVariant, ModuleVariantBuilder
from harness.releases import source_trees
from harness.sanitizer.triton import jit_kernels


class LoadedSources:
    """The sources of the release in this process, as they were patched before it began.

    A live patch is none of them: the plan of several toggles begins at the source without any.
    """

    def __init__(self, find_cuda_patch: Callable[[str], Any]) -> None:
        self._find_cuda_patch = find_cuda_patch
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
            patched = self._find_cuda_patch(module)
            if found is not None and patched is not None:
                found = replace(found, text=patched.text)
            if found is not None and isinstance(loader, PatchedLoader):
                found = replace(found, text=loader.patched_text.text)
            self._modules[module] = found
        return self._modules[module]

    def modules(self) -> Iterator[str]:
        return self._tree.modules()

    def cpp_sources(self) -> Iterator[str]:
        return self._tree.cpp_sources()

    def forget(self, module: str) -> None:
        """Drop a module's cached source: the module may have been reloaded."""
        self._modules.pop(module, None)
        self._tree.forget(module)


class ToggleEngine:
    """Holds the active toggles, and the original state of everything that they change."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._active_changes: Counter[SourceChange] = Counter()
        self._applied_variants: dict[str, ModuleVariant] = {}
        self._original_states: dict[tuple[Any, ...], tuple[LivePatch, Any]] = {}
        self._variants: dict[tuple[str, frozenset[SourceChange]], ModuleVariant] = {}
        self._plans: dict[SourceChange, PatchPlan] = {}
        self._sources: LoadedSources | None = None
        self._recorder: AttestationRecorder | None = None
        cuda_modules.install_module_hooks()
        import_runs.install_recorder()

    @property
    def sources(self) -> LoadedSources:
        if self._sources is None:
            self._sources = LoadedSources(self._find_cuda_patch)
        return self._sources

    def _find_cuda_patch(self, path: str) -> Any:
        """Return the patch of a CUDA source that stood before the first live one."""
        _, original = self._original_states.get(("cuda source", path), (None, PATCHES.get(path)))
        return original

    @property
    def recorder(self) -> AttestationRecorder:
        if self._recorder is None:
            folder = os.environ.get(bootstrap.ATTESTATIONS_VARIABLE)
            path = Path(folder) if folder else paths.state_folder() / "attestations" / "live"
            self._recorder = bootstrap.recorder or AttestationRecorder(path)
        return self._recorder

    @property
    def is_idle(self) -> bool:
        """Whether no toggle is active."""
        return not self._active_changes

    def enter(self, choices: Iterable[SourceChange]) -> None:
        with self._lock:
            active = self._active_changes + Counter(choices)
            refuse_conflicting_changes(active)
            self._change_active_set(active)

    def import_targets(self, choices: Iterable[SourceChange]) -> None:
        """Import the modules that these change; `enter` raises for one that does not import."""
        with self._lock, warnings.catch_warnings(action="ignore"):
            for choice in choices:
                with contextlib.suppress(Exception):
                    for module in self._list_modules(choice):
                        if not is_cpp_path(module):
                            self._import_module(module)

    def leave(self, choices: Iterable[SourceChange]) -> None:
        with self._lock:
            self._change_active_set(self._active_changes - Counter(choices))

    def _change_active_set(self, active: Counter[SourceChange]) -> None:
        """Switch to another set; no module changes unless all of them can."""
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
                for variant in filter(None, prepared.values()):
                    refuse_results_of_imports(variant)
                self._attest(after - before, prepared)
            self._switch_modules(prepared)
        self._active_changes = active
        names = {name for change in after for name in self._list_modules(change)}
        COPIES.watch(name for name in names if not is_cpp_path(name))

    def _switch_modules(self, variants: dict[str, ModuleVariant | None]) -> None:
        previous = {module: self._applied_variants.get(module) for module in variants}
        try:
            for module, variant in variants.items():
                self._switch_module(module, variant)
        except BaseException:  # a Ctrl-C as well: restore everything, then raise it
            for module, variant in previous.items():
                self._switch_module(module, variant)
            raise

    def _list_modules(self, choice: SourceChange) -> tuple[str, ...]:
        return tuple(module.module for module in self._get_plan(choice).modules)

    def _get_plan(self, choice: SourceChange) -> PatchPlan:
        if choice not in self._plans:
            self._plans[choice] = make_plan([choice], self.sources, str(self.sources.version))
        return self._plans[choice]

    def _make_patched_module(self, name: str, choices: frozenset[SourceChange]) -> PatchedModule:
        """Patch the current source of a module."""
        self.sources.forget(name)
        now = self.sources.read(name)
        if len(choices) == 1 and now is not None:  # its plan is valid while the source is the same
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
        if is_cpp_path(name):
            return self._build_cuda_variant(name, patched, choices)
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

    def _build_cuda_variant(
        self, name: str, patched: PatchedModule, choices: frozenset[SourceChange]
    ) -> ModuleVariant:
        cuda_modules.refuse_loaded_modules(name)
        source = attest_patched_source(patched, self.recorder)
        variant = ModuleVariant(ModuleType(name), [CudaSourcePatch(name, source)])
        self._variants[(name, choices)] = variant
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
        """Move one module to a variant, and restore what the variant does not change."""
        current = self._applied_variants.pop(name, None)
        for kernel, _ in current.watched_kernels if current else []:
            jit_kernels.unwatch_kernel(kernel)
        patches = variant.patches if variant else []
        self._move_closures(current, variant)
        if variant is not None:
            self._applied_variants[name] = variant
        keys = {patch.key for patch in patches}
        for patch in current.patches if current else []:
            if patch.key not in keys:
                self._restore_original(patch.key)
        for patch in patches:
            if patch.key not in self._original_states:
                self._original_states[patch.key] = (patch, patch.read())
            patch.write(patch.new_state)
        for constant, old, new in current.constants if current else []:
            self._restore_constant(current, constant, old, new)
        for kernel, slots in variant.watched_kernels if variant else []:
            jit_kernels.watch_kernel(kernel, slots, self.recorder.count_run)

    def _restore_original(self, key: tuple[Any, ...]) -> None:
        """Restore the original state, or the state that toggles of other modules require."""
        if key not in self._original_states:
            return
        patch, state = self._original_states[key]
        patch.write(state)
        others = [p for v in self._applied_variants.values() for p in v.patches if p.key == key]
        for other in others:
            other.write(other.new_state)
        if not others:
            del self._original_states[key]

    def _restore_constant(
        self, variant: ModuleVariant | None, name: str, old: Any, new: Any
    ) -> None:
        """Restore a constant in modules that imported it while it was toggled."""
        assert variant is not None
        if vars(variant.module).get(name) is not old:
            return
        for holder, alias in find_importers(variant.module, name, new):
            if ("name", id(vars(holder)), alias) not in self._original_states:
                vars(holder)[alias] = old

    def _move_closures(self, current: ModuleVariant | None, variant: ModuleVariant | None) -> None:
        """Switch the code of nested functions that were created before or under the toggle."""
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

    def count_missing_code(self, choice: SourceChange) -> None:
        """Count a run of a function that is missing without a toggle: a test of it reaches that."""
        slot = self.recorder.assign_slot(choice.id, choice.verb, "missing code")
        self.recorder.record_count_kinds({slot: "runs"})
        self.recorder.count_run(slot)

    def reach(self, choices: Iterable[SourceChange]) -> int:
        """Return how often the code of these toggles ran in this process while they were active."""
        wanted = {(c.id, c.verb) for c in choices}
        return sum(n for s, n in self.recorder.list_counts() if (s.toggle, s.direction) in wanted)


engine = ToggleEngine()
