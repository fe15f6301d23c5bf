"""torch.distributed on the virtual device: a process alone, or one of several ranks.

Alone, every group is of torch's own `fake` backend, whose collectives return at once and move no
data: a rank computes what it would compute if the others had the same tensors. A fork that has
joined others (`harness/sanitizer/ranks`) has groups whose collectives move bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from harness.sanitizer.device import default_generators, dispatch

_COLLECTIVES = (
    *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single"),
    *("all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "broadcast"),
    *("gather", "irecv", "recv", "reduce", "reduce_scatter", "reduce_scatter_single"),
    *("reduce_scatter_tensor", "scatter", "_all_gather_base", "_reduce_scatter_base"),
)


@dataclass(frozen=True)
class _Membership:
    """This process among its ranks."""

    rank: int
    count: int
    backend: str


_membership: _Membership | None = None


def join_ranks(rank: int, count: int, backend: str) -> None:
    """Have the groups of this process, from now on, be of a backend that reaches other ranks."""
    global _membership
    _membership = _Membership(rank, count, backend)
    torch.cuda.default_generators = default_generators.make_generators(count)


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
        name, place, count = "fake", max(rank, 0), max(world_size, 1)
        if _membership is not None:
            name, place, count = _membership.backend, _membership.rank, _membership.count
            if (rank, world_size) not in ((-1, -1), (place, count)):
                raise ValueError(
                    f"rank {rank} of {world_size} is started as rank {place} of {count}"
                )
        start_group(backend=name, rank=place, world_size=count, store=FakeStore())

    def make_group(ranks: Any = None, *args: Any, **options: Any) -> Any:
        if _membership is None:
            return new_group(ranks, backend="fake")
        group = new_group(ranks, backend=_membership.backend)
        if hasattr(group, "label") and "group_desc" in options:  # a rank outside gets a number
            group.label = options["group_desc"]
        return group

    def report_tensors(collective: Callable[..., Any]) -> Callable[..., Any]:
        """Report what a collective is given: the other ranks would write some of it."""

        @functools.wraps(collective)
        def call(*args: Any, **options: Any) -> Any:
            result = collective(*args, **options)
            if _membership is None:
                dispatch.report_writes(args, list(options.values()))
                dispatch.report_uncomputed(args, list(options.values()))
            return result

        return call

    def all_gather_object(objects: list[Any], own: Any, group: Any = None) -> None:
        objects[:] = [own] * len(objects)

    def monitored_barrier(group: Any = None, *args: Any, **options: Any) -> None:
        """Meet the others: the host of the ranks names those that do not come."""
        dist.barrier(group)

    alone: dict[str, Callable[..., Any]] = {
        "all_gather_object": all_gather_object,
        "broadcast_object_list": _ignore_call,
        "barrier": _ignore_call,
    }
    replacements: dict[str, Callable[..., Any]] = {
        "init_process_group": init_process_group,
        "new_group": make_group,
        "monitored_barrier": monitored_barrier,
    }
    replacements |= {
        name: _choose_by_membership(function, getattr(dist, name))
        for name, function in alone.items()
    }
    replacements |= {
        name: report_tensors(getattr(dist, name)) for name in _COLLECTIVES if hasattr(dist, name)
    }
    for module in (dist, dist.distributed_c10d):
        for name, function in replacements.items():
            setattr(module, name, function)


def _choose_by_membership(
    alone: Callable[..., Any], with_others: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(with_others)
    def call(*args: Any, **options: Any) -> Any:
        return (alone if _membership is None else with_others)(*args, **options)

    return call


def _ignore_call(*args: Any, **options: Any) -> None:
    """Return at once: the other ranks are not there."""
