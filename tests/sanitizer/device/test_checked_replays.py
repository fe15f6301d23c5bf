"""A checked session follows what replays write, where graphs of one pool share their bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from harness import checking
from harness.sanitizer.device import graph_pool, graphs


@pytest.mark.parametrize(("count", "later_count"), [(512, 256), (256, 512)])
def test_a_replay_writes_where_a_tensor_of_another_size_begins(
    count: int, later_count: int
) -> None:
    """What a graph writes into its own tensor does not fill the tensor of a later graph."""
    base = torch.ones(count, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with checking.checked("virtual") as check:
        with torch.cuda.graph(first):
            doubled = base * 2
            address = doubled.data_ptr()
            del doubled
            gc.collect()
        with torch.cuda.graph(second, pool=first.pool()):
            empty = torch.empty(later_count, device="cuda")
        assert empty.data_ptr() == address
        first.replay()
        with pytest.raises(checking.UninitializedMemory):
            check.assert_written(empty)


def test_a_replay_that_reads_a_tensor_does_not_count_as_its_write() -> None:
    empty = torch.empty(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with checking.checked("virtual") as check:
        check.mark_uninitialized(empty)
        with torch.cuda.graph(graph):
            empty + 1
        graph.replay()
        with pytest.raises(checking.UninitializedMemory):
            check.assert_written(empty)


@pytest.mark.parametrize(
    "change",
    [
        lambda empty: empty.t_(),
        lambda empty: empty.set_(empty),
        lambda empty: empty.unsqueeze_(0),
        lambda empty: torch.empty(0, device="cuda").resize_(4),
    ],
    ids=["t_", "set_", "unsqueeze_", "resize_"],
)
def test_an_operator_that_changes_a_view_in_place_writes_no_memory(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with checking.checked("virtual") as check:
        changed = change(torch.empty(2, 3, device="cuda"))
        with pytest.raises(checking.UninitializedMemory):
            check.assert_written(changed)
        changed.fill_(1)
        check.assert_written(changed)


def test_a_replay_within_a_replay_leaves_the_outer_one_its_pool() -> None:
    inner, outer = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(inner):
        torch.ones(8, device="cuda")
    replayed_pools = []

    def launch_inner() -> None:
        inner.replay()
        replayed_pools.append(graph_pool.get_replayed())

    with torch.cuda.graph(outer):
        graphs.run_captured("launch", launch_inner)
    outer.replay()
    assert replayed_pools[-1] is graph_pool.find_pool(outer.pool())
    assert graph_pool.get_replayed() is None
