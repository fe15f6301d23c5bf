"""A test that wants much of a GPU waits for the room that other processes' tests take."""

from __future__ import annotations

import pytest

from harness.checking.virtual import wait_for_room

GIB = 1 << 30


class Device:
    """Whose memory others give back bit by bit."""

    def __init__(self, free: list[int], cached: int = 0) -> None:
        self.free = free
        self.cached = cached
        self.asked = 0

    def mem_get_info(self) -> tuple[int, int]:
        self.asked += 1
        return (self.free.pop(0) if len(self.free) > 1 else self.free[0]), 139 * GIB

    def memory_reserved(self) -> int:
        return self.cached

    def memory_allocated(self) -> int:
        return 0

    def empty_cache(self) -> None:
        self.cached = 0


@pytest.mark.parametrize(
    ("size", "free", "cached", "asked"),
    [
        (8 * GIB, [2 * GIB, 5 * GIB, 10 * GIB], 0, 3),
        (8 * GIB, [2 * GIB], 8 * GIB, 1),
        (8 * GIB, [9 * GIB], 0, 1),
        (GIB - 1, [0], 0, 0),
    ],
)
def test_it_waits_until_there_is_room(size: int, free: list[int], cached: int, asked: int) -> None:
    device = Device(free, cached)
    wait_for_room(size, device, patience=30)
    assert device.asked == asked


def test_it_does_not_wait_for_ever() -> None:
    device = Device([0])
    wait_for_room(8 * GIB, device, patience=0.2)
    assert device.asked >= 1
