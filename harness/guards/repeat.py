"""The repetition of a guard: the part that runs again, and its random seeds."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import hypothesis.errors
import pytest

from harness.core.outcomes import Outcome
from harness.guards import hypothesis_adapter, profiles, sides
from harness.store.prove.values import RepeatMode, SideResult


def choose_repeat_mode(item: pytest.Item, side: SideResult) -> RepeatMode:
    """Choose the part of a guard to repeat after a result."""
    test: Any = getattr(item, "obj", None)
    if not hypothesis_adapter.draws_examples(test):
        return RepeatMode.WHOLE
    if side.outcome not in (Outcome.FAILED, Outcome.ERROR):
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
            return _run_explicit_examples(item)
        # It changes nothing in a test without Hypothesis.
        return profiles.extend_search(item.obj, shrink=False)

    return make_scope


@contextlib.contextmanager
def _reproduce_example(item: pytest.Function, blob: str) -> Iterator[None]:
    """Run one example; pass only if the test draws all of it and then ends."""
    with hypothesis_adapter.replay_example(item.obj, blob) as replay:
        try:
            yield
        except hypothesis.errors.DidNotReproduce as error:
            has_ended = hypothesis_adapter.PASSED_PHRASE in str(error)
            if not (has_ended and replay.has_drawn_example):
                raise sides.ExampleNotDrawn(
                    "the failing example decodes to other values here, so nothing was compared"
                ) from None


@contextlib.contextmanager
def _run_explicit_examples(item: pytest.Function) -> Iterator[None]:
    """Run the examples that are written beside a test; Hypothesis lets a test reject one."""

    def refuse_rejection(inner: Callable[..., Any]) -> Callable[..., Any]:
        def run_example(*args: Any, **kwargs: Any) -> Any:
            try:
                return inner(*args, **kwargs)
            except hypothesis.errors.UnsatisfiedAssumption:
                raise sides.ExampleNotDrawn(
                    "an example that is written beside it is rejected here, so nothing was compared"
                ) from None

        return run_example

    with (
        profiles.restrict_to_explicit_examples(item.obj),
        hypothesis_adapter.wrap_inner_test(item.obj, refuse_rejection),
    ):
        yield


def seed_random_sources(seed: int) -> None:
    """Seed every source of random numbers, since forks would all draw the same.

    Clocks and the kernel's random numbers differ by themselves. The order of a set of words is the
    same in all forks, on either side.
    """
    random.seed(seed)
    _vary_addresses(random.Random(seed))
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # `torch.manual_seed` would also queue a seed, with its stack, for each unused device.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


# One maker for each kind of address: Python's small blocks by their size, and its free lists.
_MAKERS: tuple[Callable[[], object], ...] = (
    object,
    set,
    lambda: [],  # noqa: PIE807 (`list` and `dict` do not take from the free lists)
    lambda: {},  # noqa: PIE807
    partial(float, "0.5"),
    *(partial(bytes, size) for size in range(8, 480, 16)),
)
_placeholders: list[object] = []  # until the next test of this process


def _vary_addresses(numbers: random.Random) -> None:
    """Occupy memory at random, so that addresses and the count of objects are chance as well.

    Applying a toggle and reverting it allocate differently. In forks of one process the addresses
    of new objects would therefore tell the sides apart, and repeat.
    """
    # What is freed here would be used first, and at the same address in every fork.
    _placeholders.clear()
    _placeholders.append(numbers)
    _placeholders.append([make() for make in _MAKERS for _ in range(numbers.randrange(64))])
