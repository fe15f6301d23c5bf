"""Loads a kernel's graph: the operations of a launch with these arguments, as data.

graph = graph_loader.read_graph(kernel, (source, target, count), {"BLOCK": 64})
print(mlir_printer.format_mlir(graph))
"""

from __future__ import annotations

from typing import Any

from harness.core.cache import get_or_compute
from harness.sanitizer.ir.graph import KernelGraph
from harness.sanitizer.triton import frontend, specialization


def read_graph(
    kernel: Any, args: tuple[Any, ...] = (), options: dict[str, Any] | None = None
) -> KernelGraph:
    """Read the graph that a launch of this kernel with these arguments runs."""
    return load_graph(kernel, frontend.get_binder(kernel).bind(args, options or {}))


def load_graph(kernel: Any, bound: Any) -> KernelGraph:
    """Load the graph of a bound call; Triton reads it once, and afterwards it comes from disk."""
    key = frontend.compute_cache_key(kernel, bound)
    return get_or_compute("graphs", key, lambda: specialization.build_graph(kernel, bound))
