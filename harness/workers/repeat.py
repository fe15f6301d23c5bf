"""Running a guard again: what of it, and what must not be the same as the time before."""

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
    """What of a guard is to run again, after it failed like this."""
    test: Any = getattr(item, "obj", None)
    if side.outcome is SideOutcome.PASSED or not hasattr(test, "hypothesis"):
        return RepeatMode.WHOLE
    if side.outcome is not SideOutcome.FAILED:
        return (
            RepeatMode.SEARCH
        )  # it died of its example, or lost the device for those that came after
    if side.blob:
        return RepeatMode.EXAMPLE
    return (
        RepeatMode.EXPLICIT if hasattr(test, "hypothesis_explicit_examples") else RepeatMode.SEARCH
    )


def make_attempt_scope(mode: RepeatMode, blob: str) -> sides.AttemptScope:
    """The same on both sides, however far each was looked at before."""

    def looking(item: pytest.Function) -> contextlib.AbstractContextManager[None]:
        if mode is RepeatMode.EXAMPLE:
            return _reproduce_example(item, blob)
        if mode is RepeatMode.EXPLICIT:
            return profiles.restrict_to_explicit_examples(item.obj)
        return profiles.extend_search(
            item.obj, shrink=False
        )  # changes nothing where nothing is drawn

    return looking


@contextlib.contextmanager
def _reproduce_example(item: pytest.Function, blob: str) -> Iterator[None]:
    """One example; one that passes, or that is drawn otherwise on this side, does not fail."""
    with (
        contextlib.suppress(hypothesis.errors.DidNotReproduce),
        hypothesis_adapter.pin_example(item.obj, blob),
    ):
        yield


def seed_random_sources(seed: int) -> None:
    """Seed whatever draws here: forks of one process would all draw the same.

    What the kernel draws, and clocks, differ by themselves; so does `random` in a fork (there is
    none on CUDA). Addresses and the order of sets do not, on either side.
    """
    random.seed(seed)
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # `torch.manual_seed` puts off what it would tell devices that are not in use, with a stack.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
