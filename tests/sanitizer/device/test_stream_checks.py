"""A planted fault of streams is named with both stacks, and its correct twin is not.

Each test runs its program in a checked session of the virtual GPU, and once more with the source of
events that a card has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from launch_programs import (
    CapturedModel,
    add_one,
    find_violation,
    on_side_stream,
    scatter,
)

from harness.sanitizer.violations.exceptions import EarlyReuse, UnorderedAccess

pytestmark = pytest.mark.usefixtures("event_source")


@pytest.mark.parametrize("ordered", [True, False])
def test_a_read_that_waits_for_no_event_is_reported_with_both_launches(ordered: bool) -> None:
    def program() -> None:
        target = torch.zeros(8, device="cuda")
        with on_side_stream() as side:
            write(target)
            event = side.record_event()
        if ordered:
            torch.cuda.current_stream().wait_event(event)
        add_to(target)

    def write(target: torch.Tensor) -> None:
        add_one[(1,)](target, target, 8, BLOCK=8)

    def add_to(target: torch.Tensor) -> torch.Tensor:
        return target + 1

    found = find_violation(program, "streams")
    if ordered:
        assert found is None
        return
    assert isinstance(found, UnorderedAccess)
    assert found.headline.startswith(
        "aten::add reads self on stream 0 (the default), which add_one"
    )
    assert "in write" in found.details[0]
    assert "in add_to" in found.details[1]


def test_a_host_that_waits_orders_what_follows() -> None:
    def program() -> None:
        target = torch.zeros(8, device="cuda")
        with on_side_stream() as side:
            target.add_(1)
        side.synchronize()
        target.add_(1)
        with on_side_stream():
            total = target.sum().item()
        target.fill_(total)

    assert find_violation(program) is None


def test_an_order_through_a_third_stream_counts() -> None:
    def program() -> None:
        target, third = torch.zeros(8, device="cuda"), torch.cuda.Stream()
        with on_side_stream() as side:
            target.add_(1)
        third.wait_stream(side)
        torch.cuda.current_stream().wait_stream(third)
        target.add_(1)

    assert find_violation(program) is None


def test_two_scattered_writes_may_be_of_different_elements() -> None:
    def program(second: Callable[[torch.Tensor], Any]) -> None:
        pool = torch.zeros(64, device="cuda")
        slots, values = torch.arange(8, device="cuda"), torch.ones(8, device="cuda")
        with on_side_stream():
            scatter[(1,)](values, slots, pool, BLOCK=8)
        second(pool)

    rows = torch.arange(8, 16, device="cuda")
    assert find_violation(lambda: program(lambda pool: pool.index_fill_(0, rows, 2))) is None
    found = find_violation(lambda: program(torch.Tensor.zero_))
    assert isinstance(found, UnorderedAccess)


def test_rows_that_do_not_overlap_need_no_order() -> None:
    def program() -> None:
        pool = torch.zeros(4, 8, device="cuda")
        with on_side_stream():
            pool[:2].add_(1)
        pool[2:].add_(1)

    assert find_violation(program) is None


def test_a_replay_is_ordered_with_other_launches_and_a_capture_is_not() -> None:
    def program(waits: bool) -> None:
        model = CapturedModel()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(model.graph):
                model.run_kernel()
        model.out.add_(1)  # nothing of the capture has run
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model.graph.replay()
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        model.out.add_(1)

    assert find_violation(lambda: program(waits=True)) is None
    found = find_violation(lambda: program(waits=False))
    assert isinstance(found, UnorderedAccess)
    assert "which add_one of a replayed graph" in found.headline


@pytest.mark.parametrize("reads", ["before the graph", "in front of the event", "behind it"])
def test_each_replay_records_the_event_of_a_graph(reads: str) -> None:
    """SGLang's scheduler waits so until a decode has read its table, and writes it then.

    The event orders what the graph did up to it, and what the stream did before the replay.
    """

    def program() -> None:
        table, out = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
        forward, read_done = torch.cuda.Stream(), torch.cuda.Event(external=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            if reads == "in front of the event":
                out.copy_(table)
            read_done.record()
            if reads == "behind it":
                out.copy_(table)
        for _ in range(2):
            forward.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(forward):
                if reads == "before the graph":
                    out.add_(table)
                graph.replay()
            torch.cuda.current_stream().wait_event(read_done)
            table.add_(1)

    found = find_violation(program, "streams")
    if reads != "behind it":
        assert found is None
        return
    assert isinstance(found, UnorderedAccess)
    assert found.headline.startswith("aten::add_ writes self on stream 0")
    assert "which aten::copy_ of a replayed graph reads" in found.headline


def test_an_event_that_is_recorded_after_its_capture_is_no_step_of_the_graph() -> None:
    def program() -> None:
        table, out = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
        forward, done = torch.cuda.Stream(), torch.cuda.Event()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out.copy_(table)
            done.record()  # for a side stream of the capture
        done.record()
        forward.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(forward):
            graph.replay()
        torch.cuda.current_stream().wait_event(done)  # as it was recorded before the replay
        table.add_(1)

    found = find_violation(program, "streams")
    assert isinstance(found, UnorderedAccess)


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_captured_launch_is_none_that_ran(is_captured: bool) -> None:
    def program() -> None:
        pool = torch.zeros(8, device="cuda")
        capturing, forward = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(capturing):
            if is_captured:
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin()
            store(pool)
            if is_captured:
                graph.capture_end()
        with torch.cuda.stream(forward):  # which does not wait for the other one
            store(pool)

    def store(pool: torch.Tensor) -> None:
        pool.fill_(1)

    found = find_violation(program, "streams")
    assert (found is None) == is_captured


@pytest.mark.parametrize("protection", ["record_stream", "wait", "none"])
def test_memory_that_is_reused_too_early_is_reported_with_both_launches(protection: str) -> None:
    def program() -> None:
        source = torch.zeros(8, device="cuda")
        with on_side_stream() as side:
            use(source)
            if protection == "record_stream":
                source.record_stream(side)
        drop([source])
        del source
        if protection == "wait":
            torch.cuda.current_stream().wait_stream(side)
        torch.ones(8, device="cuda")

    def use(source: torch.Tensor) -> None:
        source.sum()

    def drop(tensors: list[torch.Tensor]) -> None:
        tensors.clear()

    found = find_violation(program, "streams")
    if protection != "none":
        assert found is None
        return
    assert isinstance(found, EarlyReuse)
    assert "aten::sum reads self" in found.headline
    assert "in use" in found.details[0]
    assert "freed at" in found.details[2]
    assert "writes" in found.details[3]
    assert "on stream 0 (the default)" in found.details[3]
