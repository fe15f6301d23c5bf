"""Checks through the environment: what a Python process does when the variable is set.

Next to nothing is loaded before the program itself launches a kernel: Triton's launcher is
exchanged when its module is imported, and asks for the rest at the first launch. Meanwhile it is
heard what tensors' addresses are asked for.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from harness.watch.reports import CHECKS

_LAUNCHER = "triton.runtime.jit"


def install() -> None:
    if not os.environ.get(CHECKS) or any(isinstance(one, _Finder) for one in sys.meta_path):
        return
    if _LAUNCHER in sys.modules:
        _exchange(sys.modules[_LAUNCHER])
        return
    # Behind the finder of toggles, which has to be the first.
    place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
    sys.meta_path.insert(place, _Finder())


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _LAUNCHER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _exchange(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _exchange(module: Any) -> None:
    from harness.patching import kernels as patching

    if "torch.multiprocessing.reductions" in sys.modules:  # as in a server, before its pools
        from harness.compiled import born, known

        known.follow()
        if "unwritten" in os.environ[CHECKS].split(","):
            born.follow()
    cls = module.JITFunction

    def first(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        from harness.watch import process

        patching.running(cls, original)
        return process.started().run(kernel, args, grid, warmup, options)

    original = patching.running(cls, first)
