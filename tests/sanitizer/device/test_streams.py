"""Streams keep an order, and the host sees an asynchronous copy once it has waited for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.sanitizer.device import host_copies, streams

POISON = int.from_bytes(bytes([host_copies.POISON] * 8), "little")


def copy_out(stream: Any = None) -> tuple[torch.Tensor, Any]:
    """Copy a device tensor to pinned memory without waiting; return the event after it."""
    with torch.cuda.stream(stream or torch.cuda.current_stream()):
        host = torch.zeros(2, dtype=torch.int64, pin_memory=True)
        host.copy_(torch.arange(2, device="cuda"), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return host, event


def test_before_its_event_the_host_reads_poison() -> None:
    host, event = copy_out()
    assert host.tolist() == [POISON, POISON]
    event.synchronize()
    assert host.tolist() == [0, 1]


@pytest.mark.parametrize(
    "wait",
    [
        lambda stream, event: event.synchronize(),
        lambda stream, event: event.query(),
        lambda stream, event: stream.synchronize(),
        lambda stream, event: torch.cuda.synchronize(),
        lambda stream, event: stream.query(),
    ],
)
def test_each_way_to_wait_brings_the_values(wait: Any) -> None:
    stream = torch.cuda.Stream()
    host, event = copy_out(stream)
    wait(stream, event)
    assert host.tolist() == [0, 1]


def test_waiting_for_another_stream_brings_nothing() -> None:
    host, event = copy_out(torch.cuda.Stream())
    torch.cuda.current_stream().synchronize()
    assert host.tolist() == [POISON, POISON]
    event.synchronize()


def test_a_read_of_the_device_waits_for_its_own_stream() -> None:
    host, _ = copy_out()
    torch.ones(1, device="cuda").item()
    assert host.tolist() == [0, 1]


def test_a_wait_between_streams_is_transitive() -> None:
    side = torch.cuda.Stream()
    host, event = copy_out(side)
    torch.cuda.current_stream().wait_event(event)
    torch.cuda.current_stream().synchronize()
    assert host.tolist() == [0, 1]


def test_an_event_before_the_copy_brings_nothing() -> None:
    event = torch.cuda.Event()
    event.record()
    host, after = copy_out()
    event.synchronize()
    assert host.tolist() == [POISON, POISON]
    after.synchronize()


def test_a_copy_to_unpinned_memory_waits() -> None:
    host = torch.zeros(2, dtype=torch.int64)
    host.copy_(torch.arange(2, device="cuda"), non_blocking=True)
    assert host.tolist() == [0, 1]


def test_a_copy_back_on_the_same_stream_has_the_values() -> None:
    host, _ = copy_out()
    assert host.to("cuda", non_blocking=True).tolist() == [0, 1]


def test_a_copy_back_into_a_tensor_has_the_values() -> None:
    host, _ = copy_out()
    target = torch.zeros(2, dtype=torch.int64, device="cuda")
    target.copy_(host, non_blocking=True)
    assert target.tolist() == [0, 1]


def test_streams_have_an_identity() -> None:
    side = torch.cuda.Stream()
    assert torch.cuda.current_stream() is torch.cuda.default_stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() is side
    assert torch.cuda.current_stream() is not side
    assert side.cuda_stream != torch.cuda.default_stream().cuda_stream == 0


def test_the_clock_of_a_waiting_stream_holds_the_others() -> None:
    first, second = streams.Stream(), streams.Stream()
    first.advance()
    assert first.stream_id not in second.clock
    second.wait_stream(first)
    assert second.clock[first.stream_id] == 1


def test_a_wait_brings_the_values_of_its_own_copies_among_several() -> None:
    first, _ = copy_out()
    second, later = copy_out()
    third, last = copy_out()
    later.synchronize()
    assert (first.tolist(), second.tolist()) == ([0, 1], [0, 1])
    assert third.tolist() == [POISON, POISON]
    last.synchronize()
    assert third.tolist() == [0, 1]


def test_an_event_is_behind_what_the_host_has_waited_for() -> None:
    """The host records it after it waited, so a stream that waits for it is behind that, too."""
    first, second, third = (torch.cuda.Stream() for _ in range(3))
    count = first.advance()
    first.synchronize()
    third.wait_event(second.record_event())
    assert third.clock[first.stream_id] == count
