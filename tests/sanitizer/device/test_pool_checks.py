"""Memory of a graph's pool: graphs of one pool share it, others and eager code may not.

Each test runs its program in a checked session of the virtual GPU, and once more with the source of
events that a card has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sgl_kernel
import torch
from launch_programs import find_violation, make_allocations, on_side_stream

from harness import checking
from harness.sanitizer.device import graph_pool, memory
from harness.sanitizer.device.graphs import StaleGraphMemory
from harness.sanitizer.violations.exceptions import (
    OverwrittenPoolMemory,
    StaleGraphAddress,
    UnorderedAccess,
)

pytestmark = pytest.mark.usefixtures("event_source")


class GraphsOfOnePool:
    """Graphs of one pool, captured in turn, as SGLang's runner does for the sizes of a batch."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.static = torch.ones(8, device="cuda")

    def capture(self, compute: Callable[[], Any], is_own: bool = False) -> Any:
        """Return the graph, and what it computed."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=None if is_own else self.handle):
            result = compute()
        return graph, result

    def compute(self) -> torch.Tensor:
        temporary = self.static + 1
        return self.drop([temporary]) * 2

    def drop(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        return tensors.pop() + 1


def read_result(result: torch.Tensor) -> torch.Tensor:
    return result + 1


def find_pool_violation(program: Callable[[GraphsOfOnePool], Any]) -> checking.Violation | None:
    return find_violation(lambda: program(GraphsOfOnePool()))


def test_a_result_that_a_replay_of_another_graph_has_overwritten_is_reported() -> None:
    def program(pool: GraphsOfOnePool) -> None:
        first, _ = pool.capture(pool.compute)  # frees a temporary tensor
        second, result = pool.capture(lambda: pool.static * 3)  # which gets its memory
        second.replay()
        replay_first(first)
        read_result(result)

    def replay_first(graph: Any) -> None:
        graph.replay()

    found = find_pool_violation(program)
    assert isinstance(found, OverwrittenPoolMemory)
    assert found.headline.startswith("aten::add reads self in a graph's pool, where aten::")
    assert "of another replayed graph has written result since" in found.headline
    assert "in read_result" in found.details[0]
    assert "in capture" in found.details[1]
    assert "in compute" in found.details[2] or "in drop" in found.details[2]


def test_a_graph_that_reads_what_another_of_its_pool_has_overwritten_is_reported() -> None:
    def program(pool: GraphsOfOnePool, again: bool) -> None:
        first, *results = pool.capture(lambda: pool.static * 3)
        second, _ = pool.capture(lambda: read_result(results[0]))
        results.clear()
        third, _ = pool.capture(lambda: pool.static * 5)
        for graph in (first, second, third, first, second, third):
            graph.replay()
        if again:
            second.replay()

    assert find_pool_violation(lambda pool: program(pool, again=False)) is None
    found = find_pool_violation(lambda pool: program(pool, again=True))
    assert isinstance(found, OverwrittenPoolMemory)
    assert "aten::add of a replayed graph reads self" in found.headline


def test_what_is_written_into_a_result_is_not_what_was_overwritten() -> None:
    def program(pool: GraphsOfOnePool) -> None:
        first, _ = pool.capture(pool.compute)
        second, result = pool.capture(lambda: pool.static * 3)
        second.replay()
        first.replay()
        result.fill_(2)
        read_result(result)

    assert find_pool_violation(program) is None


def overwrite_and_touch(pool: GraphsOfOnePool, *touches: Callable[[torch.Tensor], Any]) -> None:
    first, _ = pool.capture(pool.compute)
    second, result = pool.capture(lambda: pool.static * 3)
    second.replay()
    first.replay()
    for touch in touches:
        touch(result)


@pytest.mark.parametrize(
    "touches",
    [
        (lambda result: result[:1].fill_(2), read_result),
        (lambda result: result[0:8:2].fill_(2), read_result),
        (lambda result: result.add_(1),),
        (lambda result: read_result(result.view(2, 4).t()),),
        (lambda result: result[0:8:2].fill_(2), lambda result: read_result(result[1:8:2])),
        (lambda result: result[:4].fill_(2), lambda result: result.div_(2)),
    ],
    ids=["one-written", "half-written", "updated", "transposed", "other-half", "half-updated"],
)
def test_an_overwritten_element_is_reported_whatever_was_written_beside_it(
    touches: tuple[Callable[[torch.Tensor], Any], ...],
) -> None:
    found = find_pool_violation(lambda pool: overwrite_and_touch(pool, *touches))
    assert isinstance(found, OverwrittenPoolMemory)


@pytest.mark.parametrize(
    "touches",
    [
        (lambda result: result[:1].fill_(2), lambda result: read_result(result[:1])),
        (lambda result: result[0:8:2].fill_(2), lambda result: read_result(result[0:8:2])),
        (
            lambda result: result[0:8:2].fill_(2),
            lambda result: result[1:8:2].fill_(2),
            read_result,
        ),
        (lambda result: result.copy_(torch.ones(8)), lambda result: result.add_(1), read_result),
        (lambda result: result.unsqueeze_(0),),
    ],
    ids=["its-own", "its-own-half", "both-halves", "copied", "reshaped"],
)
def test_what_is_read_after_it_was_written_is_right(
    touches: tuple[Callable[[torch.Tensor], Any], ...],
) -> None:
    assert find_pool_violation(lambda pool: overwrite_and_touch(pool, *touches)) is None


def test_a_graph_that_updates_what_another_has_overwritten_is_reported() -> None:
    def program(pool: GraphsOfOnePool) -> None:
        first, *results = pool.capture(lambda: pool.static * 3)

        def update() -> None:
            results[0].add_(1)

        second, _ = pool.capture(update)
        results.clear()
        third, _ = pool.capture(lambda: pool.static * 5)
        for graph in (first, second, third, second):
            graph.replay()

    found = find_pool_violation(program)
    assert isinstance(found, OverwrittenPoolMemory)
    assert "aten::add_ of a replayed graph reads self" in found.headline


def test_a_tensor_without_ownership_may_be_of_any_graph() -> None:
    def program(pool: GraphsOfOnePool) -> None:
        first, result = pool.capture(lambda: pool.static * 2)
        alias = sgl_kernel.weak_ref_tensor(result)
        del result
        second, later = pool.capture(lambda: pool.static * 3)
        assert later.data_ptr() == alias.data_ptr()
        second.replay()
        first.replay()
        read_result(alias)

    assert find_pool_violation(program) is None


def test_a_result_without_ownership_is_read_behind_each_replay() -> None:
    def program(pool: GraphsOfOnePool) -> None:
        first, result = pool.capture(pool.compute)
        alias = sgl_kernel.weak_ref_tensor(result)
        del result
        for _ in range(3):
            first.replay()
            read_result(alias)

    assert find_pool_violation(program) is None


def test_eager_memory_is_written_anew_by_its_allocation() -> None:
    """What a library writes into it is not known."""

    def program(pool: GraphsOfOnePool) -> None:
        first, _ = pool.capture(pool.compute)
        first.replay()
        read_result(borrow_bytes(pool))

    assert find_pool_violation(program) is None


def borrow_bytes(pool: GraphsOfOnePool) -> torch.Tensor:
    segment = graph_pool.find_pool(pool.handle)._segments[0]
    return memory.to_device(torch.frombuffer(segment.mapping, dtype=torch.float32, count=8), 0)


def test_eager_memory_among_a_pools_tensors_is_overwritten_by_a_replay() -> None:
    """SGLang gives free bytes of its pool to tensors between replays."""

    def program(pool: GraphsOfOnePool, replays: bool) -> None:
        first, _ = pool.capture(pool.compute)
        first.replay()
        borrowed = borrow_bytes(pool)
        borrowed.fill_(7)
        if replays:
            first.replay()
        read_result(borrowed)

    assert find_pool_violation(lambda pool: program(pool, replays=False)) is None
    found = find_pool_violation(lambda pool: program(pool, replays=True))
    assert isinstance(found, OverwrittenPoolMemory)


@pytest.mark.parametrize("loss", ["graph", "bytes", "none"])
def test_a_graph_of_another_pool_may_use_what_its_own_graph_keeps(loss: str) -> None:
    def program(pool: GraphsOfOnePool) -> None:
        kept = [pool.capture(lambda: pool.static * 5)]  # else the pool would go with the graph
        first, *results = pool.capture(lambda: pool.static * 3)
        reader, _ = pool.capture(lambda: read_result(results[0]), is_own=True)
        results.clear()
        if loss == "graph":
            del first
        elif loss == "bytes":
            kept.append(pool.capture(lambda: pool.static * 5))
        make_allocations()
        if loss != "graph":
            first.replay()
        if loss == "none":
            reader.replay()

    found = find_violation(lambda: program(GraphsOfOnePool()), "graphs")
    if loss == "none":
        assert found is None
        return
    assert isinstance(found, StaleGraphAddress)
    fate = "is freed" if loss == "graph" else "was given away"
    assert f"aten::add: self {fate}, and a captured graph still reads it" in found.headline
    assert "in capture" in found.details[1]


def test_the_virtual_gpu_refuses_what_is_reported() -> None:
    pool = GraphsOfOnePool()
    first, *results = pool.capture(lambda: pool.static * 3)
    reader, _ = pool.capture(lambda: read_result(results[0]), is_own=True)
    results.clear()
    _ = first, pool.capture(lambda: pool.static * 5)
    with pytest.raises(StaleGraphMemory):
        reader.replay()


def test_a_result_that_is_read_on_a_stream_that_does_not_wait_is_reported() -> None:
    def program(pool: GraphsOfOnePool, waits: bool) -> None:
        graph, result = pool.capture(pool.compute)
        with on_side_stream() as side:
            graph.replay()
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        read_result(result)

    assert find_pool_violation(lambda pool: program(pool, waits=True)) is None
    found = find_pool_violation(lambda pool: program(pool, waits=False))
    assert isinstance(found, UnorderedAccess)
