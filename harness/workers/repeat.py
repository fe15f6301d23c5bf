"""The repetition of a guard: the part that runs again, and its random seeds."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis.errors
import pytest

from harness.guards import hypothesis_adapter, profiles, sides
from harness.store.prove.values import RepeatMode, SideOutcome, SideResult


def choose_repeat_mode(item: pytest.Item, side: SideResult) -> RepeatMode:
    """Choose the part of a guard to repeat after a result."""
    test: Any = getattr(item, "obj", None)
    if side.outcome is SideOutcome.PASSED or not hasattr(test, "hypothesis"):
        return RepeatMode.WHOLE
    if side.outcome is not SideOutcome.FAILED:
        return RepeatMode.SEARCH  # its process died with the example, or it lost the device
    if side.blob:
        return RepeatMode.EXAMPLE
    return (
        RepeatMode.EXPLICIT if hasattr(test, "hypothesis_explicit_examples") else RepeatMode.SEARCH
    )


def make_attempt_scope(mode: RepeatMode, blob: str) -> sides.AttemptScope:
    """Make a scope in which both sides search alike, whatever their earlier searches."""

    def make_scope(item: pytest.Function) -> contextlib.AbstractContextManager[None]:
        if mode is RepeatMode.EXAMPLE:
            return _reproduce_example(item, blob)
        if mode is RepeatMode.EXPLICIT:
            return profiles.restrict_to_explicit_examples(item.obj)
        # It changes nothing in a test without Hypothesis.
        return profiles.extend_search(item.obj, shrink=False)

    return make_scope


@contextlib.contextmanager
def _reproduce_example(item: pytest.Function, blob: str) -> Iterator[None]:
    """Run one example; pass if it cannot be drawn on this side."""
    with (
        contextlib.suppress(hypothesis.errors.DidNotReproduce),
        hypothesis_adapter.pin_example(item.obj, blob),
    ):
        yield


def seed_random_sources(seed: int) -> None:
    """Seed every source of random numbers, since forks would all draw the same.

    Clocks and the kernel's random numbers differ by themselves. Addresses and the order of sets
    are the same in all forks, on either side.
    """
    random.seed(seed)
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # `torch.manual_seed` would also queue a seed, with its stack, for each unused device.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
