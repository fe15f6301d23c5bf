"""What of SGLang itself the virtual device replaces, once its module is imported.

`load_jit` compiles SGLang's CUDA sources; here it returns a module whose exports are stand-ins.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from harness.device.stand_ins import JitBuild, call_stand_in


class JitModule:
    """A JIT module of SGLang: each export is called as a stand-in."""

    def __init__(self, marker: tuple[str, ...], kernels: dict[str, str]) -> None:
        self._marker = marker
        self._kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        build = JitBuild(self._marker, self._kernels.get(name, name))
        full = f"jit:{self._marker[0]}.{name}"

        def call(*args: Any, **options: Any) -> Any:
            return call_stand_in(full, args, options, build)

        setattr(self, name, call)
        return call


def load_jit(
    *args: Any, cuda_wrappers: Any = None, cpp_wrappers: Any = None, **options: Any
) -> JitModule:
    return JitModule(tuple(map(str, args)), dict([*(cuda_wrappers or ()), *(cpp_wrappers or ())]))


def _replace_load_jit(module: ModuleType) -> None:
    module.load_jit = load_jit  # type: ignore[attr-defined]


def _replace_message_queue(module: ModuleType) -> None:
    """Give no queue in shared memory: its other ends would be in processes that are not there."""
    queue: Any = module.MessageQueue
    queue.create_from_process_group = staticmethod(lambda *args, **options: None)


_HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "sglang.kernels.jit.utils.compile.loader": _replace_load_jit,
    "sglang.kernels.jit.utils": _replace_load_jit,
    "sglang.jit_kernel.utils": _replace_load_jit,
    "sglang.srt.distributed.device_communicators.shm_broadcast": _replace_message_queue,
}


class _HookFinder:
    """Runs a hook after its module; behind it the usual finders load the module."""

    def __init__(self) -> None:
        self._waiting = dict(_HOOKS)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        hook = self._waiting.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            hook(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    for name, hook in _HOOKS.items():
        if name in sys.modules:
            hook(sys.modules[name])
    sys.meta_path.insert(0, _HookFinder())
