"""Functions that are called with a module once it has been imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

AfterImport = Callable[[ModuleType], None]


def call_after_import(functions: Mapping[str, AfterImport]) -> None:
    """Call each function with the module of its name: now, or at the end of its import."""
    waiting = dict(functions)
    for name in [name for name in waiting if name in sys.modules]:
        waiting.pop(name)(sys.modules[name])
    if waiting:
        # Behind the finder of toggles, which has to be the first.
        position = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
        sys.meta_path.insert(position, AfterImportFinder(waiting))


def find_spec_behind(
    finder: Any, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """Ask the finders behind one; some of them call a function after the import."""
    for other in sys.meta_path[sys.meta_path.index(finder) + 1 :]:
        spec: ModuleSpec | None = other.find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


def rebind_in_all_modules(name: str, old: Any, new: Any) -> None:
    """Bind a name anew in each imported module that binds it to `old`."""
    modules: list[Any] = list(sys.modules.values())
    for module in modules:
        if isinstance(module, ModuleType) and vars(module).get(name) is old:
            setattr(module, name, new)


class AfterImportFinder:
    """Lets the other finders find a module, and calls a function after it is executed."""

    def __init__(self, functions: dict[str, AfterImport]) -> None:
        self._functions = functions
        self._searching: set[str] = set()  # names that the other finders are asked for

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._functions or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                function = self._functions.pop(name, None)  # a search alone imports nothing
                if function is not None:
                    function(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
