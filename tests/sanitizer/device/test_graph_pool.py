"""A graph's pool: later tensors of a capture get the memory of freed ones, as on a GPU."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import sgl_kernel
import torch
from dry_runs import call_in_dry_run

from harness.sanitizer.device import graph_pool, graphs
from harness.sanitizer.device.graphs import StaleGraphMemory
from harness.sanitizer.device.memory import ALLOCATION_OBSERVERS, LEDGER

MEBIBYTE = 1 << 20
COUNT = MEBIBYTE  # elements of 4 bytes


def measure_pool() -> int:
    gc.collect()
    return LEDGER.measure(0)


def test_the_layers_of_a_model_share_the_memory_of_two() -> None:
    static = torch.zeros(COUNT, device="cuda")
    before = measure_pool()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x = static
        for _ in range(20):
            x = x + 1
    assert measure_pool() - before == 2 * 4 * COUNT
    static.fill_(5)
    graph.replay()
    assert x.unique().tolist() == [25]
    del graph, x
    assert measure_pool() == before


def test_living_tensors_do_not_overlap_and_have_bounds_of_their_own() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensors = [torch.full((100 * number + 1,), number, device="cuda") for number in range(40)]
        for number in (*range(0, 40, 3), *range(1, 40, 3)):
            tensors[number] = torch.full((50 * number + 7,), -number, device="cuda")
    graph.replay()
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + 8 * len(tensor)) for tensor in tensors)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(tensor.untyped_storage().nbytes() == 8 * len(tensor) for tensor in tensors)
    values = [-number if number % 3 < 2 else number for number in range(40)]
    assert [tensor.unique().item() for tensor in tensors] == values


def test_neighbours_that_are_freed_hold_a_tensor_of_their_joint_size() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        whole = torch.empty(3 * COUNT, device="cuda")
        start = whole.data_ptr()
        del whole
        thirds = [torch.empty(COUNT, device="cuda") for _ in range(3)]
        assert sorted(third.data_ptr() - start for third in thirds) == [0, 4 * COUNT, 8 * COUNT]
        while thirds:
            del thirds[len(thirds) // 2]
        assert torch.empty(3 * COUNT, device="cuda").data_ptr() == start


def test_graphs_with_one_handle_share_their_memory_and_others_do_not() -> None:
    handle = torch.cuda.graph_pool_handle()
    addresses = []
    captured = []
    for pool in (handle, handle, None):
        captured.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(captured[-1], pool=pool):
            addresses.append(torch.zeros(COUNT, device="cuda").data_ptr())
    assert addresses[0] == addresses[1] != addresses[2]
    assert captured[0].pool() == captured[1].pool() == handle != captured[2].pool()


def test_what_a_later_graph_writes_into_a_pool_is_what_is_read_of_a_dropped_tensor() -> None:
    """Two graphs of one pool may not both be replayed before the first one's results are read."""
    handle = torch.cuda.graph_pool_handle()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=handle):
        dropped = torch.full((COUNT,), 1.0, device="cuda")
        alias = sgl_kernel.weak_ref_tensor(dropped)
        del dropped
    with torch.cuda.graph(second, pool=handle):
        torch.full((COUNT,), 2.0, device="cuda")
    first.replay()
    assert alias.unique().tolist() == [1]
    second.replay()
    assert alias.unique().tolist() == [2]


def test_a_stand_ins_result_is_in_the_pool_and_its_argument_is_not_moved() -> None:
    values = torch.ones(COUNT // 4, 4, device="cuda")
    weight = torch.full((4,), 2.0, device="cuda")
    before = measure_pool()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):
            out = sgl_kernel.rmsnorm(values, weight)
        same = sgl_kernel.rmsnorm(values, weight, out=values)
    assert same is None or same.data_ptr() == values.data_ptr()
    assert measure_pool() - before == 2 * 4 * COUNT
    assert graph_pool.find_owner(out.data_ptr()) is not None
    values.fill_(3)
    graph.replay()
    assert torch.allclose(out.cpu(), torch.full((1,), 2.0))


def test_a_replay_takes_no_memory_of_the_card() -> None:
    static = torch.zeros(COUNT, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = static + 1
    torch.cuda.reset_peak_memory_stats()
    before = measure_pool()
    used = []
    ALLOCATION_OBSERVERS.append(lambda *_: used.append(LEDGER.measure(0)))
    try:
        graph.replay()
    finally:
        ALLOCATION_OBSERVERS.pop()
    assert set(used) == {before}
    assert out.unique().tolist() == [1]


@pytest.mark.parametrize("count", [8, 3000, COUNT])
def test_integers_that_a_dry_run_leaves_uncomputed_are_zeros_in_each_replay(count: int) -> None:
    """Else an index would be what another tensor had there before."""

    def capture() -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            numbers = torch.full((count,), 7, device="cuda")
            address = numbers.data_ptr()
            del numbers
            indices = torch.empty(count, dtype=torch.int64, device="cuda")
            answers = [indices.data_ptr() == address]
            copy = indices + 0
        answers.append(copy.unique().tolist())
        graph.replay()
        return [*answers, copy.unique().tolist(), indices.unique().tolist()]

    assert call_in_dry_run(capture) == [True, [0], [0], [0]]


def test_views_of_one_result_stay_views_of_it() -> None:
    kept = torch.full((8,), 3.0, device="cuda")

    def launch() -> Any:
        whole = torch.ones(8, device="cuda")
        return whole, whole[2:4], whole.view(torch.int32)[:2], kept

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        whole, part, numbers, same = graphs.run_captured("launch", launch)
        part += 5
        numbers.zero_()
    assert same.data_ptr() == kept.data_ptr()
    expected = [0, 0, 6, 6, 1, 1, 1, 1]
    assert whole.tolist() == expected
    graph.replay()
    assert whole.tolist() == expected


class SharedPool:
    """A graph reads a result of another pool's graph, and the result is freed."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.static = torch.ones(COUNT, device="cuda")
        self.second = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.second, pool=self.handle):  # it keeps the pool
            self.kept = self.static + 0
        self.first, self.reader = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.first, pool=self.handle):
            result = self.static + 0
        with torch.cuda.graph(self.reader):
            self.read = result + 1

    def replay(self) -> list[float]:
        self.reader.replay()
        values: list[float] = self.read.unique().tolist()
        return values


def test_a_graph_of_another_pool_reads_what_the_graph_that_allocated_it_keeps() -> None:
    shared = SharedPool()
    assert shared.replay() == [2]
    shared.first = None
    with pytest.raises(StaleGraphMemory):
        shared.replay()


def test_a_graph_of_another_pool_may_not_read_bytes_that_were_given_on() -> None:
    shared = SharedPool()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=shared.handle):
        torch.full((COUNT,), 7.0, device="cuda")
    with pytest.raises(StaleGraphMemory):
        shared.replay()


def test_a_freed_tensor_of_a_pool_is_found_as_its_segment() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        address = torch.zeros(COUNT, device="cuda").data_ptr()
    assert LEDGER.find(address) == (address, 4 * COUNT)
    del graph
    gc.collect()
    assert LEDGER.find(address) is None
