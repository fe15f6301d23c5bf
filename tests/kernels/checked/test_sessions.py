"""What a session that is over leaves behind: names, and no tensor of many gigabytes."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import torch
from kernels_to_check import copy

from harness import checking
from harness.checking import OutOfBounds


def check() -> Any:
    return checking.checked("cpu")


def numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32)


def test_what_a_refused_launch_was_given_goes_with_it() -> None:
    """At once: a tensor of many gigabytes must not wait for the garbage collector."""

    def refused() -> weakref.ref[torch.Tensor]:
        target = numbers(20)
        with contextlib.suppress(OutOfBounds), check():
            copy[(3,)](numbers(24), target, 24, 0, BLOCK=8)
            raise AssertionError("it was not refused")
        return weakref.ref(target)

    refused()  # what torch loads at the first one goes round in circles itself
    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()


def test_whoever_still_has_a_session_has_no_tensor_by_it() -> None:
    """An error has: a frame that was cleared keeps its function, with what that closed over."""
    with check() as held:
        source, target = numbers(24), numbers(24)
        held.fence(target, write=lambda x, y, z: slice(8 * x, 8 * x + 8))
        copy[(3,)](source, target, 24, 0, BLOCK=8)
    living = [weakref.ref(source), weakref.ref(target)]
    del source, target
    assert [launch.kernel for launch in held.launches] == ["copy"]
    assert [one() for one in living] == [None, None]
