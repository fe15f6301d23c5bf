"""The state of a process that runs many tests: what a run changed is put back before the next one.

Invariant: after `restore` returned an empty string, the names, containers and settings that are
listed here are the same objects with the same content as when the state was taken. What a run
changes elsewhere is not seen: inside of a deeper object, a closure or a C++ library.

Example: a fault makes SGLang fill `_CACHE = {}` of one of its modules with wrong numbers. The dict
is empty again before the next fault; were it rebound, the name would hold the old dict again.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from harness.core import processes
from harness.guards import hypothesis_adapter
from harness.sanitizer.plugins.for_sglang import cached_answers

RESTORED_PACKAGES = ("sglang", "fixtures", "suites")
_MAX_DEPTH = 2  # a container in a container of a module
_CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict, Counter)
_MISSING = object()
_LRU_CACHE = type(functools.lru_cache(lambda: None))
_TORCH_SETTINGS = (
    ("get_default_dtype", "set_default_dtype"),
    ("get_default_device", "set_default_device"),
    ("is_grad_enabled", "set_grad_enabled"),
    ("get_num_threads", "set_num_threads"),
    ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    ("are_deterministic_algorithms_enabled", "use_deterministic_algorithms"),
)


class ProcessState:
    """The state of this process as its first test finds it."""

    def __init__(self) -> None:
        self._holders: dict[int, _NamedValues] = {}
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._caches: dict[int, tuple[Any, int]] = {}  # each with its misses
        self._modules: set[str] = set()
        self._settings = list(_read_settings())
        self.accept_modules()
        self.accept_running()

    def accept_modules(self) -> None:
        """Take what was imported since then into this state, as it is now."""
        for name in self.find_new_modules():
            self._modules.add(name)
            self._add_module(sys.modules[name])

    def accept_running(self) -> None:
        """Take what runs now for the usual state: threads and child processes."""
        self._threads = set(threading.enumerate())
        self._children = set(processes.list_children(os.getpid()))

    def find_new_modules(self) -> list[str]:
        """Find the modules of the restored packages that are imported and not in this state."""
        return [
            name
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in RESTORED_PACKAGES
            and name not in self._modules
            and isinstance(module, ModuleType)
        ]

    def restore(self) -> str:
        """Put everything back; return why that is impossible, or an empty string."""
        try:
            for values in self._holders.values():
                values.restore()
            for container, content in self._containers.values():
                _restore_container(container, content)
            for key, (cache, misses) in self._caches.items():
                if cache.cache_info().misses != misses:
                    cache.cache_clear()
                    self._caches[key] = cache, 0
            for value, write in self._settings:
                write(value)
        except Exception as error:
            return f"its state cannot be put back: {type(error).__name__}: {error}"
        return ""

    def find_running(self) -> str:
        """Describe what a run has started that goes on; empty if nothing does."""
        new = [one.name for one in set(threading.enumerate()) - self._threads if _may_go_on(one)]
        if new:
            return f"its thread {new[0]} goes on"
        if set(processes.list_children(os.getpid())) - self._children:
            return "a process of it goes on"
        return ""

    # What is put back

    def _add_module(self, module: ModuleType) -> None:
        self._add_holder(module)
        for answers in cached_answers.iterate_answer_maps(module):
            self._add_value(answers, 1)
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                self._add_holder(value)

    def _add_holder(self, holder: Any) -> None:
        """Add the names of a module, a class, or an object that one of these holds."""
        if id(holder) in self._holders:
            return
        values = self._holders[id(holder)] = _NamedValues(holder)
        for value in values.before.values():
            self._add_value(value, _MAX_DEPTH)
            if not isinstance(holder, ModuleType | type):
                continue
            package = type(value).__module__.partition(".")[0]
            if package in RESTORED_PACKAGES and hasattr(value, "__dict__"):
                self._add_holder(value)

    def _add_value(self, value: Any, depth: int) -> None:
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if isinstance(value, FunctionType):
            for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                self._add_value(default, 1)
        elif isinstance(value, _LRU_CACHE):
            self._caches[id(value)] = value, value.cache_info().misses
        elif depth and type(value) in _CONTAINERS and id(value) not in self._containers:
            if value is sys.modules:
                return
            content = _copy_content(value)
            self._containers[id(value)] = value, content
            for part in content.values() if isinstance(content, dict) else content:
                self._add_value(part, depth - 1)


class _NamedValues:
    """The names of a module, a class or an object, and what they were bound to."""

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self.before = dict(self._iterate_names())

    def _iterate_names(self) -> Iterator[tuple[str, Any]]:
        return (
            (name, value)
            for name, value in list(vars(self.holder).items())
            if not (name.startswith("__") and name.endswith("__"))
        )

    def restore(self) -> None:
        now = dict(self._iterate_names())
        for name, value in self.before.items():
            if now.get(name, _MISSING) is not value:
                setattr(self.holder, name, value)
        for name in now.keys() - self.before.keys():
            if not isinstance(now[name], ModuleType):  # a submodule that stays imported
                delattr(self.holder, name)


def _may_go_on(thread: threading.Thread) -> bool:
    """Return whether a thread may still work for the run; a library's daemon does not."""
    target = getattr(thread, "_target", None) or type(thread)
    package = str(getattr(target, "__module__", "")).partition(".")[0]
    return not thread.daemon or package in RESTORED_PACKAGES


def _copy_content(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _restore_container(container: Any, content: Any) -> None:
    if _is_unchanged(container, content):
        return
    container.clear()
    extend = container.update if isinstance(container, dict | set) else container.extend
    extend(content)


def _is_unchanged(container: Any, content: Any) -> bool:
    if len(container) != len(content):
        return False
    if isinstance(container, dict):
        return all(
            a is b and container[a] is content[b] for a, b in zip(container, content, strict=True)
        )
    return all(a is b for a, b in zip(container, content, strict=True))


def _read_settings() -> Iterator[tuple[Any, Callable[[Any], object]]]:
    """Read the settings of the whole process, each with the function that writes it."""
    yield hypothesis_adapter.get_global_seed(), hypothesis_adapter.set_global_seed
    yield random.getstate(), random.setstate
    yield os.getcwd(), os.chdir
    yield dict(os.environ), _restore_environment
    yield list(sys.path), functools.partial(_restore_container, sys.path)
    modules: Any = sys.modules
    if (numpy := modules.get("numpy")) is not None:
        yield numpy.random.get_state(), numpy.random.set_state
    if (torch := modules.get("torch")) is not None:
        for read, write in _TORCH_SETTINGS:
            yield (
                getattr(torch, read)(),
                functools.partial(_restore_torch_setting, torch, read, write),
            )
        yield torch.get_rng_state(), torch.set_rng_state
        if torch.cuda.is_initialized():
            yield torch.cuda.get_rng_state_all(), torch.cuda.set_rng_state_all


def _restore_environment(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _restore_torch_setting(torch: Any, read: str, write: str, before: Any) -> None:
    if getattr(torch, read)() != before:
        getattr(torch, write)(before)
