"""Hypothesis's engine for one slice: boundary examples, fresh examples and climbs to targets.

Hypothesis runs a number of examples and climbs towards targets once, after half of them. A slice
has a time instead: after as many fresh examples as the last climb had, it climbs again from the
best example so far. Example: 15 fresh ones, a climb of 40, 40 fresh ones, a climb of 40, until the
time is over. The first examples, and later one fresh one in four, lie at the bounds of their draws.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis.core import decode_failure

from harness.guards import hypothesis_adapter
from harness.guards.hypothesis_adapter import (
    ConjectureData,
    ConjectureResult,
    ConjectureRunner,
    ExitReason,
    Status,
)
from harness.runs.fuzz.boundary_provider import BoundaryBias, BoundaryProvider
from harness.runs.fuzz.messages import TimeSlice

OPENING_BIASES = (
    BoundaryBias.HIGH,
    BoundaryBias.LARGE,
    BoundaryBias.LARGE,
    BoundaryBias.MIXED,
    BoundaryBias.LARGE,
    BoundaryBias.MIXED,
)
LATER_BIASES = (BoundaryBias.LARGE, BoundaryBias.MIXED)
BOUNDARY_FRACTION = 0.25  # of the examples after the opening ones
EXAMPLES_BEFORE_CLIMB = 15  # fresh examples before the first climb
CLIMB_EXAMPLES = 40  # examples of a climb


class BestTargetExamples:
    """The best example for each target, the only passing examples in the database.

    It replaces Hypothesis's Pareto front, which stores the best examples for any mixture of targets
    and size: hundreds of examples, and a comparison with each of them for every new one. A test
    with two targets ran 1,600 examples: the front stored 707 of them and took 2.5 times as long;
    this class stored 2.
    """

    def __init__(self, on_evict: Callable[[ConjectureResult], None]) -> None:
        self._best: dict[str, ConjectureResult] = {}
        self._on_evict = on_evict

    def add(self, data: ConjectureResult) -> bool:
        """Store an example if it is the best so far for any target."""
        if data.status < Status.VALID:
            return False
        better = {
            label: data
            for label, value in data.target_observations.items()
            if label not in self._best or value > self._best[label].target_observations[label]
        }
        replaced = [self._best[label] for label in better if label in self._best]
        self._best.update(better)
        for each in replaced:
            if each not in self:
                self._on_evict(each)
        return bool(better)

    def __contains__(self, data: object) -> bool:
        return any(each is data for each in self._best.values())


class FuzzEngine(ConjectureRunner):
    """One slice's search."""

    time_slice: TimeSlice
    instance: FuzzEngine | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        type(self).instance = self
        if self.pareto_front is not None:
            self.pareto_front = BestTargetExamples(self.on_pareto_evict)  # type: ignore[assignment]
        self._next_climb = EXAMPLES_BEFORE_CLIMB
        self.exhausted = False

    def test_function(self, data: Any) -> None:
        super().test_function(data)
        is_over = time.monotonic() > self.time_slice.generate_until
        if is_over and not self.interesting_test_cases:
            self.exit_with(ExitReason.finished)

    def exit_with(self, reason: ExitReason) -> None:
        if self.tree.is_exhausted and not self.interesting_test_cases:
            self.exhausted = True
        super().exit_with(reason)

    def reuse_existing_test_cases(self) -> None:
        for blob in self.time_slice.first_blobs:
            self.cached_test_function(decode_failure(blob.encode()), extend="full")
            if self.interesting_test_cases:
                return
        super().reuse_existing_test_cases()
        # Shrink a failure again after an earlier run did, since that run may have stopped early.
        self.reused_previously_shrunk_test_case = False

    def generate_new_test_cases(self) -> None:
        if self.interesting_test_cases:
            return
        # At least one example runs, even if a busy machine used up the time.
        self._run_boundary_example(OPENING_BIASES[0])
        for bias in OPENING_BIASES[1:]:
            if self.should_generate_more():
                self._run_boundary_example(bias)
        while self.should_generate_more():
            if self.random.random() < BOUNDARY_FRACTION:
                data = self._run_boundary_example(self.random.choice(LATER_BIASES))
            else:
                data = self.new_conjecture_data(self.generate_novel_prefix())
                self.test_function(data)
            self.generate_mutations_from(data)
            if self.should_optimise and self.valid_test_cases >= self._next_climb:
                self._climb_targets()

    def _run_boundary_example(self, bias: BoundaryBias) -> ConjectureData:
        data = ConjectureData(
            prefix=(),
            observer=self.tree.new_observer(),  # type: ignore[no-untyped-call]
            provider=BoundaryProvider,
            random=self.random,
        )
        assert isinstance(data.provider, BoundaryProvider)
        data.provider.bias = bias
        self.test_function(data)
        return data

    def _climb_targets(self) -> None:
        before = self.valid_test_cases
        self.optimise_targets(max_valid=before + CLIMB_EXAMPLES)
        climbed = self.valid_test_cases - before
        self._next_climb = self.valid_test_cases + max(EXAMPLES_BEFORE_CLIMB, climbed)

    def pareto_optimise(self) -> None:
        """Skip the search for simpler examples that are as good."""

    def shrink_interesting_test_cases(self) -> None:
        seconds = max(0.0, self.time_slice.shrink_until - time.monotonic())
        with hypothesis_adapter.limit_shrinking(seconds):
            super().shrink_interesting_test_cases()


@contextlib.contextmanager
def use_fuzz_engine(time_slice: TimeSlice) -> Iterator[type[FuzzEngine]]:
    """Replace Hypothesis's search by this engine during the block."""
    engine = type("SliceEngine", (FuzzEngine,), {"time_slice": time_slice})
    with hypothesis_adapter.replace_runner(engine):
        yield engine
