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

from harness.watch.reports import CHECKS


def install() -> None:
    if not os.environ.get(CHECKS) or any(isinstance(one, _Finder) for one in sys.meta_path):
        return
    waiting = dict(_LAUNCHERS)
    for name in [name for name in waiting if name in sys.modules]:
        waiting.pop(name)(sys.modules[name])
    # Behind the finder of toggles, which has to be the first.
    if waiting:
        place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
        sys.meta_path.insert(place, _Finder(waiting))


class _Finder:
    def __init__(self, waiting: dict[str, Callable[[Any], None]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        exchange = self._waiting.pop(name, None)
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


_exchanged: list[tuple[Any, Any]] = []  # Triton's launcher, until somebody launches a kernel


def _began() -> Any:
    """Checks, from the first launch on, whoever makes it: ours has to take Triton's own place."""
    from harness.patching import kernels as patching
    from harness.watch import process

    while _exchanged:
        patching.running(*_exchanged.pop())
    return process.started()


def _exchange(module: Any) -> None:
    from harness.patching import kernels as patching

    if "torch.multiprocessing.reductions" in sys.modules:  # as in a server, before its pools
        from harness.compiled import born, known

        known.follow()
        if "unwritten" in os.environ[CHECKS].split(","):
            born.follow()
    cls = module.JITFunction

    def first(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return _began().run(kernel, args, grid, warmup, options)

    _exchanged.append((cls, patching.running(cls, first)))


def _exchange_inductors(module: Any) -> None:
    cls = module.CachingAutotuner
    original = cls.run

    def first(tuner: Any, *args: Any, **options: Any) -> Any:
        cls.run = original
        _began().take_inductors()
        return tuner.run(*args, **options)

    cls.run = first


_LAUNCHERS: dict[str, Callable[[Any], None]] = {
    "triton.runtime.jit": _exchange,
    "torch._inductor.runtime.triton_heuristics": _exchange_inductors,
}
