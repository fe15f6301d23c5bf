"""A graph is replayed on the addresses of its capture; freed memory in it is an error."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from harness import checking
from harness.sanitizer.device.graphs import CaptureError, StaleGraphMemory


@triton.jit
def sum_indices(indices, count, out):  # type: ignore[no-untyped-def]
    total = tl.zeros((), tl.int64)
    for place in range(tl.load(count)):
        total += tl.load(indices + place)
    tl.store(out, total)


def test_a_replay_writes_in_place_through_views() -> None:
    cache = torch.zeros(2, 2, device="cuda")
    row = torch.tensor([1, 2], device="cuda", dtype=torch.float32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache[1].copy_(row)
        cache[0] += 1
    cache.zero_()
    row.fill_(5)
    graph.replay()
    graph.replay()
    assert cache.tolist() == [[2, 2], [5, 5]]


def test_memory_freed_after_the_capture_is_named_at_the_replay() -> None:
    kept, freed = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept += freed
    graph.replay()
    del freed
    gc.collect()
    with pytest.raises(StaleGraphMemory, match=rf"float32 \[3\].*{__file__}|{__file__}.*float32"):
        graph.replay()


def test_a_kernel_that_reads_freed_memory_is_named_with_the_line_that_launched_it() -> None:
    indices, count = torch.arange(8, device="cuda"), torch.tensor([2], device="cuda")
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with checking.run_kernels_on_cpu():
        with torch.cuda.graph(graph):
            sum_indices[(1,)](indices, count, out)
        del indices
        gc.collect()
        with pytest.raises(StaleGraphMemory, match=rf"sum_indices .captured at {__file__}:"):
            graph.replay()


def test_memory_of_the_capture_itself_lives_with_the_graph() -> None:
    static = torch.ones(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        middle = static * 3
        out = middle + 1
    del middle
    gc.collect()
    static.fill_(2)
    graph.replay()
    assert out.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    "read",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor.cpu(),
        lambda tensor: tensor.nonzero(),
        lambda tensor: torch.zeros(3).copy_(tensor),
        lambda tensor: bool((tensor > 0).all()),
        lambda tensor: tensor.copy_(torch.zeros(3)),
        lambda tensor: torch.tensor([1, 2], device=tensor.device),
    ],
)
def test_what_waits_for_the_device_is_refused_while_capturing(read) -> None:  # type: ignore[no-untyped-def]
    tensor = torch.ones(3, device="cuda")
    with pytest.raises(CaptureError, match=__file__), torch.cuda.graph(torch.cuda.CUDAGraph()):
        read(tensor)
    assert not torch.cuda.is_current_stream_capturing()


def test_capturing_is_known_and_ends() -> None:
    assert not torch.cuda.is_current_stream_capturing()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert torch.cuda.is_current_stream_capturing()
    assert not torch.cuda.is_current_stream_capturing()


def test_a_stand_in_is_one_step() -> None:
    import sgl_kernel

    values = torch.ones(1, 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sgl_kernel.rmsnorm(values, torch.full((4,), 2.0, device="cuda"))
    assert "sgl_kernel.rmsnorm" in graph.steps
    values.mul_(100)
    graph.replay()
    assert torch.allclose(out.cpu(), torch.full((1, 4), 2.0))


def test_an_asynchronous_copy_reads_pinned_memory_again() -> None:
    pinned = torch.zeros(2).pin_memory()
    static = torch.zeros(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static.copy_(pinned, non_blocking=True)
    pinned.fill_(4)
    graph.replay()
    assert static.tolist() == [4, 4]


def test_a_replay_without_a_capture_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="without a preceding"):
        torch.cuda.CUDAGraph().replay()


def test_a_kernel_may_use_more_of_a_buffer_in_a_replay_than_while_capturing() -> None:
    buffer = torch.arange(8, device="cuda")
    count, out = torch.tensor([2], device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with checking.run_kernels_on_cpu():
        with torch.cuda.graph(graph):
            sum_indices[(1,)](buffer[:2], count, out)
        count.fill_(8)
        graph.replay()
        assert out.item() == 28
        count.fill_(9)
        with pytest.raises(checking.OutOfBounds, match="past the end of indices"):
            graph.replay()


def test_a_kernel_is_held_to_its_view_while_capturing() -> None:
    buffer, out = torch.arange(8, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    with (
        checking.run_kernels_on_cpu(),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        pytest.raises(checking.OutOfBounds, match="past the end of indices"),
    ):
        sum_indices[(1,)](buffer[:2], torch.full((1,), 3, device="cuda"), out)


@pytest.mark.parametrize(
    ("compute", "shape"),
    [
        (lambda data: torch.softmax(data, -1), (2, 3)),
        (lambda data: torch.softmax(data.half(), -1, dtype=torch.float32), (2, 3)),
        (lambda data: torch.log_softmax(data, -1), (2, 3)),
        (lambda data: torch.nn.functional.nll_loss(data, (data[:, 0] > 2).long()), (2, 3)),
        (lambda data: torch.ops.aten._softmax_backward_data(data, data, -1, data.dtype), (2, 3)),
    ],
    ids=["softmax", "half", "logarithm", "loss", "gradient"],
)
def test_a_replay_computes_operators_that_the_device_has_kernels_of_its_own_for(
    compute: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]
) -> None:
    static = torch.zeros(shape, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compute(static)
    static.copy_(torch.tensor([[1.0, 2, 3], [5, 4, 8]]))
    graph.replay()
    assert torch.equal(out.cpu(), compute(static).cpu())
