"""A kernel read as data: Triton's own IR as a small typed graph that one can hold and print.

    graph = kernels.read(kernel, (source, target, count), {"BLOCK": 64})
    print(graph)

`frontend` alone knows how Triton is asked, `parsing` how it prints, `flow` what leads where.
"""

from __future__ import annotations

from typing import Any

from harness.kernels.ir.disk_cache import get_or_compute
from harness.kernels.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    SourceLocation,
    ValueType,
)

__all__ = [
    "IRBlock",
    "IROperation",
    "IRRegion",
    "IRValue",
    "KernelGraph",
    "SourceLocation",
    "ValueType",
    "load_graph",
    "read_graph",
]


def read_graph(
    kernel: Any, args: tuple[Any, ...] = (), options: dict[str, Any] | None = None
) -> KernelGraph:
    """What a launch of this kernel with these arguments runs."""
    from harness.kernels.triton import frontend

    return load_graph(kernel, frontend.get_binder(kernel).bind(args, options or {}))


def load_graph(kernel: Any, bound: Any) -> KernelGraph:
    """The graph of a bound call; read by Triton once, and from disk afterwards."""
    from harness.kernels.triton import frontend, specialization

    key = frontend.compute_cache_key(kernel, bound)
    return get_or_compute("graphs", key, lambda: specialization.build_graph(kernel, bound))
