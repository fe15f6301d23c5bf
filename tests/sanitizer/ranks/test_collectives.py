"""Each collective of torch.distributed moves real bytes between ranks with a GPU each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_programs import make_tensor, run_ranks

from harness import checking
from harness.core import preparation
from harness.sanitizer.ranks import host
from harness.sanitizer.ranks.messages import REVERSED, SUM_ORDERS


def make_filled(count: int, value: float = 0.0) -> torch.Tensor:
    return torch.full((count,), value, device="cuda")


def call_each_collective(rank: int) -> dict[str, Any]:
    """Call each one with what tells the ranks apart: rank 1 has 10 where rank 0 has 0."""
    given: dict[str, Any] = {}
    own = make_tensor(10.0 * rank, 10.0 * rank + 1)

    given["all_reduce"] = own.clone()
    dist.all_reduce(given["all_reduce"])
    given["max"] = own.clone()
    dist.all_reduce(given["max"], op=dist.ReduceOp.MAX)
    given["bfloat16"] = own.bfloat16()
    dist.all_reduce(given["bfloat16"])
    given["all_gather"] = [make_filled(2), make_filled(2)]
    dist.all_gather(given["all_gather"], own)
    given["all_gather_into_tensor"] = make_filled(4)
    dist.all_gather_into_tensor(given["all_gather_into_tensor"], own)
    given["uneven all_gather"] = [make_filled(1), make_filled(2)]
    dist.all_gather(given["uneven all_gather"], own[: rank + 1])
    given["reduce_scatter"] = make_filled(1)
    dist.reduce_scatter(given["reduce_scatter"], list(own.split(1)))
    given["reduce_scatter_tensor"] = make_filled(1)
    dist.reduce_scatter_tensor(given["reduce_scatter_tensor"], own)
    given["all_to_all"] = [make_filled(1), make_filled(1)]
    dist.all_to_all(given["all_to_all"], list(own.split(1)))
    given["all_to_all_single"] = make_filled(2)
    dist.all_to_all_single(given["all_to_all_single"], own)
    given["uneven all_to_all"] = make_filled(3 if rank else 1)
    sizes = ([1, 2], [0, 2]) if rank else ([1, 0], [1, 1])
    dist.all_to_all_single(given["uneven all_to_all"], own, *sizes)
    given["broadcast"] = own.clone()
    dist.broadcast(given["broadcast"], 1)
    given["reduce"] = own.clone()
    dist.reduce(given["reduce"], 1)
    given["gather"] = [make_filled(2), make_filled(2)] if rank else []
    dist.gather(own, given["gather"] or None, dst=1)
    given["scatter"] = make_filled(1)
    dist.scatter(given["scatter"], list(own.split(1)) if rank else None, src=1)
    given["of the host"] = torch.tensor([rank + 1])
    dist.all_reduce(given["of the host"])
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    given["all_gather_object"] = objects
    told = [f"rank {rank}"]
    dist.broadcast_object_list(told, 1)
    given["broadcast_object_list"] = told
    dist.barrier()
    return {name: list_values(value) for name, value in given.items()}


def list_values(value: Any) -> Any:
    if isinstance(value, list):
        return [list_values(one) for one in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


EXPECTED: dict[str, tuple[Any, Any]] = {
    "all_reduce": ([10, 12], [10, 12]),
    "max": ([10, 11], [10, 11]),
    "bfloat16": ([10, 12], [10, 12]),
    "all_gather": ([[0, 1], [10, 11]], [[0, 1], [10, 11]]),
    "all_gather_into_tensor": ([0, 1, 10, 11], [0, 1, 10, 11]),
    "uneven all_gather": ([[0], [10, 11]], [[0], [10, 11]]),
    "reduce_scatter": ([10], [12]),
    "reduce_scatter_tensor": ([10], [12]),
    "all_to_all": ([[0], [10]], [[1], [11]]),
    "all_to_all_single": ([0, 10], [1, 11]),
    "uneven all_to_all": ([0], [1, 10, 11]),
    "broadcast": ([10, 11], [10, 11]),
    "reduce": ([0, 1], [10, 12]),
    "gather": ([], [[0, 1], [10, 11]]),
    "scatter": ([10], [11]),
    "of the host": ([3], [3]),
    "all_gather_object": ([{"rank": 0}, {"rank": 1}], [{"rank": 0}, {"rank": 1}]),
    "broadcast_object_list": (["rank 1"], ["rank 1"]),
}


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # names that SGLang calls
def test_each_collective_gives_what_it_is_defined_to_give(tmp_path: Path) -> None:
    problems, results = run_ranks(tmp_path, 2, call_each_collective)
    assert problems == []
    for rank, result in enumerate(results):
        assert result == {name: pair[rank] for name, pair in EXPECTED.items()}


@pytest.mark.parametrize("order", SUM_ORDERS)
def test_a_sum_is_added_in_the_order_of_the_ranks_or_the_other(tmp_path: Path, order: str) -> None:
    parts = [1e8, -1e8, 1.0]  # in float32, the third may only be added last
    if order == REVERSED:
        parts.reverse()

    def add_up(rank: int) -> Any:
        own = make_tensor(parts[rank])
        dist.all_reduce(own)
        return [own.item(), str(own.device), torch.cuda.device_count()]

    problems, results = run_ranks(tmp_path, 3, add_up, sum_order=order)
    assert problems == []
    assert results == [[1.0, f"cuda:{rank}", 3] for rank in range(3)]


def test_a_rank_may_ask_for_a_tensor_before_it_sends_its_own(tmp_path: Path) -> None:
    def pass_around(rank: int) -> Any:
        received, own = make_filled(1), make_tensor(float(rank))
        ops = [dist.P2POp(dist.irecv, received, (rank - 1) % 3)]
        ops += [dist.P2POp(dist.isend, own, (rank + 1) % 3)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return received.item()

    problems, results = run_ranks(tmp_path, 3, pass_around)
    assert (problems, results) == ([], [2.0, 0.0, 1.0])


def test_a_replayed_graph_calls_its_collectives_again(tmp_path: Path) -> None:
    def replay(rank: int) -> Any:
        own, total = make_tensor(1.0), make_filled(1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total.copy_(own)
            dist.all_reduce(total)
        own.fill_(rank + 5.0)
        graph.replay()
        return total.item()

    problems, results = run_ranks(tmp_path, 2, replay)
    assert (problems, results) == ([], [11.0, 11.0])


@pytest.mark.parametrize("waits", [True, False])
def test_a_collective_is_ordered_by_the_stream_it_was_called_on(
    tmp_path: Path, waits: bool
) -> None:
    def use_two_streams(rank: int) -> str:
        own, side = make_filled(4), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with checking.checked("virtual", launch_checks=("streams",)):
                with torch.cuda.stream(side):
                    own.add_(1)
                if waits:
                    torch.cuda.current_stream().wait_stream(side)
                dist.all_reduce(own)
        except checking.Violation as violation:
            return violation.headline
        return ""

    problems, results = run_ranks(tmp_path, 2, use_two_streams)
    assert problems == []
    for headline in results:
        assert ("dist.all_reduce" in headline) is not waits, headline


def test_what_a_rank_compiles_is_no_standstill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "STILL_SECONDS", 0.5)

    def compile_first(rank: int) -> None:
        if rank:
            with preparation.announce_preparation():
                host.time.sleep(2.0)
        dist.barrier()

    problems, _ = run_ranks(tmp_path, 2, compile_first)
    assert problems == []
