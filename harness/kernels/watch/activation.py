"""Checks through the environment: what a Python process does when the variable is set.

Next to nothing is loaded before the program itself launches a kernel: Triton's launcher is
exchanged when its module is imported, and asks for the rest at the first launch. Meanwhile it is
heard what tensors' addresses are asked for.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from harness.kernels.watch.report_files import CHECKS_VARIABLE


def install_checks() -> None:
    if not os.environ.get(CHECKS_VARIABLE) or any(
        isinstance(one, _LauncherFinder) for one in sys.meta_path
    ):
        return
    waiting = dict(_LAUNCHER_REPLACEMENTS)
    for name in [name for name in waiting if name in sys.modules]:
        waiting.pop(name)(sys.modules[name])
    # Behind the finder of toggles, which has to be the first.
    if waiting:
        place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
        sys.meta_path.insert(place, _LauncherFinder(waiting))


class _LauncherFinder:
    def __init__(self, replacements: dict[str, Callable[[Any], None]]) -> None:
        self._replacements = replacements

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        exchange = self._replacements.pop(name, None)
        if exchange is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                exchange(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_replaced_launchers: list[
    tuple[Any, Any]
] = []  # Triton's launcher, until somebody launches a kernel


def _start_checks() -> Any:
    """Checks, from the first launch on, whoever makes it: ours has to take Triton's own place."""
    from harness.kernels.watch import checked_process
    from harness.patching import jit_kernels as patching

    while _replaced_launchers:
        patching.replace_run(*_replaced_launchers.pop())
    return checked_process.ensure_launcher()


def _replace_triton_launcher(module: Any) -> None:
    from harness.patching import jit_kernels as patching

    if "torch.multiprocessing.reductions" in sys.modules:  # as in a server, before its pools
        from harness.kernels.gpu import empty_memory, storage_registry

        storage_registry.track_data_ptr()
        if "unwritten" in os.environ[CHECKS_VARIABLE].split(","):
            empty_memory.patch_empty_factories()
    cls = module.JITFunction

    def first(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return _start_checks().run(kernel, args, grid, warmup, options)

    _replaced_launchers.append((cls, patching.replace_run(cls, first)))


def _replace_inductor_launcher(module: Any) -> None:
    cls = module.CachingAutotuner
    original = cls.run

    def first(tuner: Any, *args: Any, **options: Any) -> Any:
        cls.run = original
        _start_checks().start_inductor()
        return tuner.run(*args, **options)

    cls.run = first


_LAUNCHER_REPLACEMENTS: dict[str, Callable[[Any], None]] = {
    "triton.runtime.jit": _replace_triton_launcher,
    "torch._inductor.runtime.triton_heuristics": _replace_inductor_launcher,
}
