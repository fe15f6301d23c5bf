"""What SGLang's engine is told on a machine without a GPU, and how its kernels are watched.

Runs inside SGLang's own processes. Nothing here computes anything: on a CPU the speculative
modules are told to take the Triton tree kernels that SGLang itself ships (for XPU), since the
CUDA ones are a binary. What was told is said once, in the server's log, and kept with the run.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

VARIABLE = "UNFIX_ENGINE"
TREE_KERNELS = "tree-kernels"
CHECKED = "checked"
WORDS = {
    TREE_KERNELS: "SGLang's own Triton tree kernels stand in for the CUDA ones",
    CHECKED: "every Triton kernel of the scheduler is under check",
}

# Where a release keeps the switch between the tree kernels, and what it is told there.
_MODULES = (
    "sglang.srt.speculative.eagle_utils",
    "sglang.srt.speculative.spec_utils",
    "sglang.srt.speculative.eagle_worker_common",
    "sglang.kernels.ops.speculative.cache_locs",
    "sglang.kernels.ops.speculative.spec_tree",
    "sglang.srt.speculative.triton_ops.spec_tree",
    "sglang.srt.speculative.triton_ops.cache_locs",
    "sglang.srt.mem_cache.allocation",
)
_XPU = ("sgl_build_tree_kernel_triton", "assign_extend_cache_locs_uniform_func")


def apply(names: list[str]) -> None:
    """Make these adaptations in this process; what is forked from it has them, too."""
    for name in names:
        {TREE_KERNELS: _take_triton_trees, CHECKED: _watch}[name]()


def asked_for() -> list[str]:
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]


def _take_triton_trees() -> None:
    told = []
    for name in _MODULES:
        try:
            module: Any = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "_is_cpu"):
            module._is_cpu = False
        if hasattr(module, "_is_xpu") and any(hasattr(module, kernel) for kernel in _XPU):
            module._is_xpu = True
            told.append(name)
    if not told:
        raise RuntimeError(
            "this SGLang has no Triton tree kernels: speculative decoding needs CUDA here"
        )


def _watch() -> None:
    """Open a checked session around the scheduler's loop, which launches all kernels."""
    from sglang.srt.managers.scheduler import Scheduler

    from harness import checking

    loop = Scheduler.event_loop_normal
    if getattr(loop, "watched", False):
        return

    def event_loop_normal(self: Any) -> None:
        with checking.checked("cpu"):
            loop(self)

    event_loop_normal.watched = True  # type: ignore[attr-defined]
    Scheduler.event_loop_normal = event_loop_normal
