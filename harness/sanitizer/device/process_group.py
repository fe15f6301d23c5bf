"""torch.distributed on the virtual device: each process is one rank, the others answer nothing.

Every group is of torch's own `fake` backend, whose collectives return at once and move no data: a
rank computes what it would compute if the others had the same tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from harness.sanitizer.device import dispatch

_COLLECTIVES = (
    *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single"),
    *("all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "broadcast"),
    *("gather", "irecv", "recv", "reduce", "reduce_scatter", "reduce_scatter_single"),
    *("reduce_scatter_tensor", "scatter", "_all_gather_base", "_reduce_scatter_base"),
)


def install_process_group() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    start_group, new_group = dist.init_process_group, dist.new_group

    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        **options: Any,
    ) -> None:
        start_group(
            backend="fake", rank=max(rank, 0), world_size=max(world_size, 1), store=FakeStore()
        )

    def make_group(ranks: Any = None, *args: Any, **options: Any) -> Any:
        return new_group(ranks, backend="fake")

    def report_tensors(collective: Callable[..., Any]) -> Callable[..., Any]:
        """Report what a collective is given: the other ranks would write some of it."""

        @functools.wraps(collective)
        def call(*args: Any, **options: Any) -> Any:
            result = collective(*args, **options)
            dispatch.report_writes(args, list(options.values()))
            dispatch.report_uncomputed(args, list(options.values()))
            return result

        return call

    def all_gather_object(objects: list[Any], own: Any, group: Any = None) -> None:
        objects[:] = [own] * len(objects)

    replacements: dict[str, Callable[..., Any]] = {
        "init_process_group": init_process_group,
        "new_group": make_group,
        "all_gather_object": all_gather_object,
        "broadcast_object_list": _ignore_call,
        "monitored_barrier": _ignore_call,
        "barrier": _ignore_call,
    }
    replacements |= {
        name: report_tensors(getattr(dist, name)) for name in _COLLECTIVES if hasattr(dist, name)
    }
    for module in (dist, dist.distributed_c10d):
        for name, function in replacements.items():
            setattr(module, name, function)


def _ignore_call(*args: Any, **options: Any) -> None:
    """Return at once: the other ranks are not there."""
