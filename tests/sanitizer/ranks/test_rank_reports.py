"""What only several ranks can get wrong is reported at the collective, with each rank's line."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_programs import make_tensor, run_ranks

from harness.sanitizer.ranks import host

HERE = Path(__file__).name


def other_collective(rank: int) -> None:
    if rank:
        dist.all_reduce(make_tensor(1.0))
    else:
        dist.all_gather([make_tensor(1.0)] * 2, make_tensor(1.0))


def other_shape(rank: int) -> None:
    dist.all_reduce(make_tensor(*[1.0] * (rank + 1)))


def other_type(rank: int) -> None:
    dist.broadcast(make_tensor(1.0, dtype=torch.bfloat16 if rank else torch.float16), 0)


def other_operation(rank: int) -> None:
    dist.all_reduce(make_tensor(1.0), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)


def other_root(rank: int) -> None:
    dist.broadcast(make_tensor(1.0), rank)


def other_group(rank: int) -> None:
    own = dist.new_group([0, 1], group_desc="tp")
    dist.all_reduce(make_tensor(1.0), group=own if rank else None)


def other_order(rank: int) -> None:
    groups = [dist.new_group([0, 1], group_desc=name) for name in ("tp", "ep")]
    for group in groups[:: 1 if rank else -1]:
        dist.all_reduce(make_tensor(1.0), group=group)


def small_output(rank: int) -> None:
    dist.all_gather([make_tensor(0.0)] * 2, make_tensor(*[1.0] * (rank + 1)))


def other_message(rank: int) -> None:
    if rank:
        dist.recv(make_tensor(1.0, 2.0), 0)
    else:
        dist.send(make_tensor(1.0), 1)


def both_receive(rank: int) -> None:
    dist.recv(make_tensor(1.0), 1 - rank)


STUCK = "the ranks wait for each other at different collectives"


@pytest.mark.parametrize(
    ("program", "headline"),
    [
        (other_collective, "ranks 0 and 1 call different collectives: all_gather and all_reduce"),
        (
            other_shape,
            "ranks 0 and 1 call all_reduce with different tensors: float32 [1] and float32 [2]",
        ),
        (other_type, "ranks 0 and 1 call broadcast with different types: bfloat16, float16"),
        (
            other_operation,
            "ranks 0 and 1 call all_reduce with different operations: sum and max",
        ),
        (other_root, "ranks 0 and 1 call broadcast with different roots: 0 and 1"),
        (other_group, STUCK),
        (other_order, STUCK),
        (
            small_output,
            "rank 0 calls all_gather with outputs of 1, 1 elements, and the ranks give it 1, 2",
        ),
        (other_message, "rank 0 sends float32 [1], and rank 1 receives float32 [2]"),
        (both_receive, STUCK),
    ],
)
def test_calls_that_do_not_belong_together(program: Any, headline: str, tmp_path: Path) -> None:
    (report,), _ = run_ranks(tmp_path, 2, program)
    first, *lines = report.splitlines()
    assert first == headline
    assert [line.split()[:2] for line in lines] == [["rank", "0"], ["rank", "1"]]
    for line in lines:
        assert f"{HERE}:" in line, line
        assert f" in {program.__name__}" in line, line


def test_a_rank_that_has_ended_is_no_hang(tmp_path: Path) -> None:
    def leave_early(rank: int) -> None:
        if not rank:
            dist.all_reduce(make_tensor(1.0))

    (report,), _ = run_ranks(tmp_path, 2, leave_early)
    first, waiting, ended = report.splitlines()
    assert first == "rank 0 waits in all_reduce for rank 1, which has ended: it is done"
    assert f"{HERE}:" in waiting
    assert ended == "  rank 1 has ended: it is done"


def test_the_cause_comes_before_what_follows_from_it(tmp_path: Path) -> None:
    def raise_early(rank: int) -> None:
        if rank:
            raise KeyError("no such head")
        dist.all_reduce(make_tensor(1.0))

    (cause, report), _ = run_ranks(tmp_path, 2, raise_early)
    assert cause == "rank 1: KeyError: 'no such head'"
    assert report.startswith("rank 0 waits in all_reduce for rank 1, which has ended: KeyError")


def test_a_rank_that_dies_is_named_with_its_signal(tmp_path: Path) -> None:
    def die(rank: int) -> None:
        if rank:
            os.kill(os.getpid(), signal.SIGSEGV)
        dist.barrier()

    problems, _ = run_ranks(tmp_path, 2, die)
    assert problems[0] == "rank 1: segmentation fault (SIGSEGV)"


@pytest.mark.parametrize("limit", ["STILL_SECONDS", "BUSY_SECONDS"])
def test_a_rank_that_does_not_come_is_named_with_its_line(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, limit, 0.5)
    is_still = limit == "STILL_SECONDS"

    def wait_for_ever(rank: int) -> None:
        while rank:
            if is_still:
                time.sleep(100)
        dist.all_reduce(make_tensor(1.0))

    (report,), _ = run_ranks(tmp_path, 2, wait_for_ever)
    first, waiting, absent = report.splitlines()
    words = "stands still for 0.5 s" if is_still else "runs for 0.5 s of a processor"
    assert first == f"rank 1 {words} while rank 0 waits in all_reduce"
    assert "rank 0 waits in all_reduce (sum) of float32 [1]" in waiting
    assert absent.startswith("  rank 1 is at ")
    assert " in wait_for_ever" in absent


def test_a_rank_that_loads_may_work_alone_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "BUSY_SECONDS", 0.2)

    def load(rank: int) -> None:
        while time.process_time() < rank:
            pass
        dist.all_reduce(make_tensor(1.0))

    assert run_ranks(tmp_path, 2, load, get_busy_seconds=lambda rank: 30.0)[0] == []
