"""A kernel read as data: Triton's own IR as a small typed graph that one can hold and print.

    graph = kernels.read(kernel, (source, target, count), {"BLOCK": 64})
    print(graph)

`frontend` alone knows how Triton is asked, `parsing` how it prints, `flow` what leads where.
"""

from __future__ import annotations

from typing import Any

from harness.kernels.graph import Block, Graph, Kind, Operation, Region, Source, Value
from harness.kernels.kept import kept

__all__ = ["Block", "Graph", "Kind", "Operation", "Region", "Source", "Value", "graph_of", "read"]


def read(kernel: Any, args: tuple[Any, ...] = (), options: dict[str, Any] | None = None) -> Graph:
    """What a launch of this kernel with these arguments runs."""
    from harness.kernels import frontend

    return graph_of(kernel, frontend.binder_of(kernel).bind(args, options or {}))


def graph_of(kernel: Any, bound: Any) -> Graph:
    """The graph of a bound call; read by Triton once, and from disk afterwards."""
    from harness.kernels import frontend, loosening

    key = frontend.key_of(kernel, bound)
    return kept("graphs", key, lambda: loosening.graph_of(kernel, bound))
