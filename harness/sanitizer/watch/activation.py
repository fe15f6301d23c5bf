"""Activates checks in a Python process whose environment requests them (UNFIX_CHECK).

Checks of kernels begin with the first launch, those of launches (`graphs`, `streams`) with torch.

Invariant: the program pays next to nothing until it launches a kernel. Example: `import torch` runs
as before; `import triton.runtime.jit` replaces `JITFunction.run` by a function that, when it is
called first, puts Triton's own back, loads `checked_process`, and lets that launch the kernel. From
the import of Triton on, `data_ptr()` requests are observed, since tables of addresses may be made
before the first launch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from harness.core.after_import import call_after_import
from harness.core.device import DEVICE_VARIABLE, VIRTUAL, get_device
from harness.sanitizer.launches import LAUNCH_CHECKS
from harness.sanitizer.watch.report_files import CHECKS_VARIABLE


def install_checks() -> None:
    """Check the kernels of this process on its GPU, if its environment requests it; once.

    On this machine's CPU the launcher of `virtual_process` and the pytest plugin do.
    """
    words = os.environ.get(CHECKS_VARIABLE, "").split(",")
    if not words[0] or _requested:
        return
    _requested.append(True)
    if any(word in LAUNCH_CHECKS for word in words) and get_device() != VIRTUAL:
        call_after_import({"torch": lambda _: start_launch_checks()})
    on_gpu = os.environ.get(DEVICE_VARIABLE, "cuda") == "cuda"
    if on_gpu and any(word not in (*LAUNCH_CHECKS, "stop") for word in words):
        call_after_import(_LAUNCHER_REPLACEMENTS)


def start_launch_checks() -> None:
    """Follow the launches of this process, whose device is there."""
    from harness.sanitizer.watch import launch_reports

    launch_reports.start_checks()


_requested: list[bool] = []
_replaced_launchers: list[tuple[Any, Any]] = []  # a class and its own run, until that is restored


def start_checks() -> Any:
    """Start checks at the first launch, and return the launcher.

    Triton's own run is restored first: the launcher saves the run that it finds, and would call
    this function again.
    """
    from harness.sanitizer.triton import jit_kernels
    from harness.sanitizer.watch import checked_process

    while _replaced_launchers:
        jit_kernels.replace_run(*_replaced_launchers.pop())
    return checked_process.ensure_launcher()


def _replace_triton_launcher(module: Any) -> None:
    from harness.sanitizer.triton import jit_kernels

    if "torch.multiprocessing.reductions" in sys.modules:  # as in a server, before its pools
        from harness.sanitizer.gpu import empty_memory, storage_registry

        storage_registry.track_data_ptr()
        if "uninitialized" in os.environ[CHECKS_VARIABLE].split(","):
            empty_memory.patch_empty_factories()
    cls = module.JITFunction

    def run_first(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return start_checks().run(kernel, args, grid, warmup, options)

    _replaced_launchers.append((cls, jit_kernels.replace_run(cls, run_first)))


def _replace_inductor_launcher(module: Any) -> None:
    cls = module.CachingAutotuner
    original = cls.run

    def run_first(tuner: Any, *args: Any, **options: Any) -> Any:
        cls.run = original
        start_checks().start_inductor()
        return tuner.run(*args, **options)

    cls.run = run_first


_LAUNCHER_REPLACEMENTS: dict[str, Callable[[Any], None]] = {
    "triton.runtime.jit": _replace_triton_launcher,
    "torch._inductor.runtime.triton_heuristics": _replace_inductor_launcher,
}
