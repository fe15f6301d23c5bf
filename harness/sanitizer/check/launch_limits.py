"""What a card refuses at a launch: each refusal with its numbers, as the error that Triton raises.

A program may expect such an error (an autotuner drops the configuration), so a refusal is raised
and not kept as a report; one that nobody catches is the test's report. Example: a grid of
(1, 70000, 1) raises `RefusedGrid`, which is a RuntimeError, as Triton's own is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from harness.sanitizer.check.launch_log import KernelLaunch, to_full_grid
from harness.sanitizer.cpu.lowering import LoweredKernel
from harness.sanitizer.device import host_memory
from harness.sanitizer.device.cards import (
    GRID_LIMITS,
    MAX_THREADS,
    describe_beyond_limits,
    get_card,
)
from harness.sanitizer.triton.compiled_kernels import compile_for_card
from harness.sanitizer.triton.line_tracing import find_caller
from harness.sanitizer.violations.exceptions import LaunchRefused

_WARP = 32
_INVALID = "Triton Error [CUDA]: invalid argument"


class RefusedPointer(LaunchRefused, ValueError):
    """Memory of the host, which the card cannot reach."""


class RefusedGrid(LaunchRefused, RuntimeError):
    """More programs than an axis may have, or than a cooperative launch has room for."""


class RefusedResources(LaunchRefused, OutOfResources):  # type: ignore[misc]
    """More threads or shared memory than the card has for a block."""

    def __init__(self, kernel: str, required: int, limit: int, name: str) -> None:
        words = f"out of resource: {name}, Required: {required}, Hardware limit: {limit}"
        called = (f"launched at {find_caller()}",)
        LaunchRefused.__init__(self, f"{kernel}: {words}, of a block", None, called)
        self.kernel, self.required, self.limit, self.name = kernel, required, limit, name

    def __str__(self) -> str:
        return LaunchRefused.__str__(self)

    def __reduce__(self) -> Any:
        return type(self), (self.kernel, self.required, self.limit, self.name)


def find_grid_refusal(kernel: str, sides: Iterable[Any]) -> RefusedGrid | None:
    """Find why no card launches such a grid; an empty one launches nothing."""
    words = describe_beyond_limits("a grid", to_full_grid(sides), GRID_LIMITS, smallest=0)
    called = (f"launched at {find_caller()}",)
    return RefusedGrid(f"{kernel}: {_INVALID}: {words}", None, called) if words else None


def refuse_grid(launch: KernelLaunch) -> None:
    """Raise if a card has no room for the launch's programs or threads."""
    called, options = (f"launched at {find_caller()}",), launch.options
    if refusal := find_grid_refusal(launch.kernel, launch.grid):
        raise refusal
    threads = _WARP * int(options.get("num_warps", 4))
    if threads > MAX_THREADS:
        raise RefusedResources(launch.kernel, threads, MAX_THREADS, "threads")
    if options.get("launch_cooperative_grid"):
        card = get_card()
        at_once = card.multiprocessors * (card.threads_per_multiprocessor // threads)
        if (programs := math.prod(launch.grid)) > at_once:
            words = (
                f"{programs} programs in a cooperative launch, and {at_once} run at once at most"
            )
            raise RefusedGrid(f"{launch.kernel}: {_INVALID}: {words}", None, called)


def refuse_host_memory(launch: KernelLaunch) -> None:
    """Raise for a tensor of the CPU, in a session whose kernels are a GPU's."""
    for place, (name, value) in enumerate(launch.arguments.items()):
        base = getattr(value, "base", value)
        if not isinstance(base, torch.Tensor) or base.device.type != "cpu":
            continue
        if base.data_ptr() and not host_memory.is_reachable(base):
            tensor = f"{name} is a tensor of the CPU ({base.dtype} {list(base.shape)})"
            words = f"Pointer argument (at {place}) cannot be accessed from Triton: {tensor}"
            called = (f"launched at {find_caller()}",)
            raise RefusedPointer(f"{launch.kernel}: {words}", None, called)


def refuse_shared_memory(launch: KernelLaunch, lowered: LoweredKernel, kernel: Any) -> None:
    """Raise if the card has too little shared memory; Triton compiles what may be too large."""
    limit = get_card().shared_memory_per_block_optin
    stages = int(launch.options.get("num_stages", 3))
    if stages * lowered.staged_bytes + lowered.exchanged_bytes <= limit:
        return
    arguments = tuple(launch.arguments.values())
    required = int(compile_for_card(kernel, arguments, launch.options).metadata.shared)
    if required > limit:
        raise RefusedResources(launch.kernel, required, limit, "shared memory")
