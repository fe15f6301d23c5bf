"""What is imported once and forked often."""

from __future__ import annotations

import resource

from harness.core import preloading


def _at(depth: int, calls: int) -> int:
    """Pages that are new to this process while something is called again and again, so deep."""
    if depth:
        return _at(depth - 1, calls)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        _at(0, 0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_no_depth_is_the_one_at_which_each_call_maps_memory_anew() -> None:
    """Without room some are: each call there costs as much as a hundred others."""
    calls = 500
    _at(0, calls)
    assert max(_at(depth, calls) for depth in range(200)) >= calls
    assert (
        max(preloading.with_large_stack(lambda: [_at(depth, calls) for depth in range(200)]))
        < calls
    )
