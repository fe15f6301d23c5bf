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

from harness import paths
from harness.errors import ConflictError, PatchError
from harness.patching import boot, functions, kernels
from harness.patching.attestation import Recorder
from harness.patching.importers import importers
from harness.patching.importing import PACKAGE, PatchedLoader
from harness.patching.plan import Change, PatchedModule, Plan, digest, make
from harness.patching.units import Unit
from harness.patching.variants import Builder, Variant
from harness.releases import sources
from harness.syntax.scopes import ModuleSource


class LivingSources:
    """The release this process runs, with the text that it really runs."""

    def __init__(self) -> None:
        self._read: dict[str, ModuleSource | None] = {}
        tree = sources.current()
        if tree is None:
            raise PatchError(f"{PACKAGE} is not installed in this interpreter ({sys.executable})")
        self._tree = tree

    @property
    def version(self) -> Version | None:
        return self._tree.version

    def read(self, module: str) -> ModuleSource | None:
        if module not in self._read:
            loader = getattr(getattr(sys.modules.get(module), "__spec__", None), "loader", None)
            found = self._tree.read(module)
            if found is not None and isinstance(loader, PatchedLoader):
                found = ModuleSource(module, found.path, loader.patched.text)
            self._read[module] = found
        return self._read[module]

    def modules(self) -> Iterator[str]:
        return self._tree.modules()

    def forget(self, module: str) -> None:
        """Read a module's source again: it may have been reloaded."""
        self._read.pop(module, None)
        self._tree.forget(module)


class Engine:
    """The one place that knows which toggles are in, and what each thing was without them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._active: Counter[Change] = Counter()
        self._applied: dict[str, Variant] = {}
        self._originals: dict[tuple[Any, ...], tuple[Unit, Any]] = {}
        self._variants: dict[tuple[str, frozenset[Change]], Variant] = {}
        self._plans: dict[Change, Plan] = {}
        self._sources: LivingSources | None = None
        self._recorder: Recorder | None = None

    @property
    def sources(self) -> LivingSources:
        if self._sources is None:
            self._sources = LivingSources()
        return self._sources

    @property
    def recorder(self) -> Recorder:
        if self._recorder is None:
            folder = os.environ.get(boot.ATTESTATIONS)
            place = Path(folder) if folder else paths.state() / "attestations" / "live"
            self._recorder = boot.recorder or Recorder(place)
        return self._recorder

    @property
    def idle(self) -> bool:
        """Whether nothing is toggled."""
        return not self._active

    def enter(self, choices: Iterable[Change]) -> None:
        with self._lock:
            wanted = self._active + Counter(choices)
            self._refuse_both_ways(wanted)
            self._move(wanted)

    def import_for(self, choices: Iterable[Change]) -> None:
        """Have here what these would change; what does not import is met again by who enters it."""
        with self._lock, warnings.catch_warnings(action="ignore"):
            for choice in choices:
                with contextlib.suppress(Exception):
                    for module in self._modules(choice):
                        self._import(module)

    def leave(self, choices: Iterable[Change]) -> None:
        with self._lock:
            self._move(self._active - Counter(choices))

    def _refuse_both_ways(self, wanted: Counter[Change]) -> None:
        directions: dict[str, Change] = {}
        for choice in wanted:
            other = directions.setdefault(choice.id, choice)
            if other is not choice and other != choice:
                raise ConflictError(f"{other} and {choice} are asked for at once")

    def _move(self, wanted: Counter[Change]) -> None:
        """From the active set to the wanted one; nothing is touched unless all of it can be."""
        before, after = set(self._active), set(wanted)
        if before != after:
            touched = [m for c in sorted(before ^ after, key=str) for m in self._modules(c)]
            prepared = {
                module: self._variant(
                    module, frozenset(c for c in after if module in self._modules(c))
                )
                for module in dict.fromkeys(touched)
            }
            if after - before:
                self._attest(after - before, prepared)
            self._switch_all(prepared)
        self._active = wanted

    def _switch_all(self, prepared: dict[str, Variant | None]) -> None:
        there = {module: self._applied.get(module) for module in prepared}
        try:
            for module, variant in prepared.items():
                self._switch(module, variant)
        except BaseException:  # a Ctrl-C as well: put everything back, then let it go on
            for module, variant in there.items():
                self._switch(module, variant)
            raise

    def _modules(self, choice: Change) -> tuple[str, ...]:
        return tuple(module.module for module in self._plan(choice).modules)

    def _plan(self, choice: Change) -> Plan:
        if choice not in self._plans:
            self._plans[choice] = make([choice], self.sources, str(self.sources.version))
        return self._plans[choice]

    def _patched(self, name: str, choices: frozenset[Change]) -> PatchedModule:
        """What these make of a module's source as it is now."""
        self.sources.forget(name)
        now = self.sources.read(name)
        if len(choices) == 1 and now is not None:  # its plan serves as long as the source does
            (only,) = choices
            known = next(each for each in self._plan(only).modules if each.module == name)
            if known.digest == digest(now.text):
                return known
        plan = make(sorted(choices, key=str), self.sources, str(self.sources.version))
        return next(each for each in plan.modules if each.module == name)

    def _variant(self, name: str, choices: frozenset[Change]) -> Variant | None:
        if not choices:
            return None
        known = self._variants.get((name, choices))
        if known is not None and known.still_fits:
            return known
        patched = self._patched(name, choices)
        module = self._import(name)
        source = self.sources.read(name)
        assert source is not None
        slots = [self.recorder.slot(s.toggle, s.direction, s.target) for s in patched.sites]
        builder = Builder(module, source.text, patched, slots, self.recorder.ran, self._original_of)
        variant = self._variants[(name, choices)] = builder.build()
        self.recorder.counted_as(builder.compiled.kinds)
        return variant

    def _original_of(self, key: tuple[Any, ...], now: Any) -> Any:
        known = self._originals.get(key)
        return now if known is None else known[1]

    def _import(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise PatchError(
                f"the target's module {name} does not import here: {type(error).__name__}: {error}"
            ) from error

    def _switch(self, name: str, variant: Variant | None) -> None:
        """Move one module to a variant; what neither holds any more goes back to what it was."""
        current = self._applied.pop(name, None)
        for kernel, _ in current.watched if current else []:
            kernels.unwatch(kernel)
        units = variant.units if variant else []
        self._move_closures(current, variant)
        if variant is not None:
            self._applied[name] = variant
        keys = {unit.key for unit in units}
        for unit in current.units if current else []:
            if unit.key not in keys:
                self._restore(unit.key)
        for unit in units:
            if unit.key not in self._originals:
                self._originals[unit.key] = (unit, unit.read())
            unit.write(unit.new)
        for constant, old, new in current.constants if current else []:
            self._take_back(current, constant, old, new)
        for kernel, slots in variant.watched if variant else []:
            kernels.watch(kernel, slots, self.recorder.ran)

    def _restore(self, key: tuple[Any, ...]) -> None:
        """What it was before any toggle, or what the toggles of other modules still make of it."""
        if key not in self._originals:
            return
        unit, state = self._originals[key]
        unit.write(state)
        others = [u for v in self._applied.values() for u in v.units if u.key == key]
        for other in others:
            other.write(other.new)
        if not others:
            del self._originals[key]

    def _take_back(self, variant: Variant | None, name: str, old: Any, new: Any) -> None:
        """A constant that somebody imported while it was toggled."""
        assert variant is not None
        if vars(variant.module).get(name) is not old:
            return
        for holder, alias in importers(variant.module, name, new):
            if ("name", id(vars(holder)), alias) not in self._originals:
                vars(holder)[alias] = old

    def _move_closures(self, current: Variant | None, variant: Variant | None) -> None:
        """Functions made by an outer one, before or during a toggle, change along with it."""
        for before, after in current.closures if current else []:
            for function in functions.closures_of(after):
                function.__code__ = before
        for before, after in variant.closures if variant else []:
            for function in functions.closures_of(before):
                function.__code__ = after

    def _attest(self, choices: set[Change], modules: Iterable[str]) -> None:
        self.recorder.applied(
            str(self.sources.version),
            [{"id": c.id, "direction": c.verb, "title": c.title} for c in sorted(choices, key=str)],
        )
        for module in modules:
            self.recorder.patched(module)

    def reach(self, choices: Iterable[Change]) -> int:
        """How often the code of these toggles has run in this process while they were in."""
        wanted = {(c.id, c.verb) for c in choices}
        return sum(n for s, n in self.recorder.counts() if (s.toggle, s.direction) in wanted)


engine = Engine()
