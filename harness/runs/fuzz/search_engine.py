"""Hypothesis's engine for as long as a slice lasts: corners, fresh examples, and targets in turn.

Hypothesis runs a number of examples, the simplest first, and climbs towards targets once, late. A
slice has seconds instead, others have been there before it, and what it looks for is at the ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.core
from hypothesis.core import decode_failure
from hypothesis.internal.conjecture import engine
from hypothesis.internal.conjecture.data import ConjectureData, ConjectureResult, Status
from hypothesis.internal.conjecture.engine import ConjectureRunner, ExitReason

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
EXAMPLES_BEFORE_CLIMB = 15  # examples before the first climb towards targets
CLIMB_EXAMPLES = 40  # examples of a climb


class BestTargetExamples:
    """The example that came furthest towards each target: what the database keeps of passed ones.

    In the place of Hypothesis's Pareto front. That keeps whatever is furthest or simplest by any
    mixture of targets and size, hundreds of examples, each of which a new one is compared with and
    each slice began with.
    """

    def __init__(self, on_evict: Callable[[ConjectureResult], None]) -> None:
        self._best: dict[str, ConjectureResult] = {}
        self._on_evict = on_evict

    def add(self, data: ConjectureResult) -> bool:
        """Whether it is further than any before it."""
        if data.status < Status.VALID:
            return False
        further = {
            label: data
            for label, value in data.target_observations.items()
            if label not in self._best or value > self._best[label].target_observations[label]
        }
        before = [self._best[label] for label in further if label in self._best]
        self._best.update(further)
        for each in before:
            if each not in self:
                self._on_evict(each)
        return bool(further)

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

    @property
    def is_out_of_time(self) -> bool:
        return time.monotonic() > self.time_slice.generate_until

    def test_function(self, data: ConjectureData) -> None:
        super().test_function(data)
        if self.is_out_of_time and not self.interesting_test_cases:
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
        # One that a night before has shrunk may have lost its way to be smaller still.
        self.reused_previously_shrunk_test_case = False

    def generate_new_test_cases(self) -> None:
        if self.interesting_test_cases:
            return
        # A machine that is busy may have let all the time pass: one example there is.
        self._run_boundary_example(OPENING_BIASES[0])
        for mood in OPENING_BIASES[1:]:
            if self.should_generate_more():
                self._run_boundary_example(mood)
        while self.should_generate_more():
            if self.random.random() < 0.25:
                data = self._run_boundary_example(
                    self.random.choice((BoundaryBias.LARGE, BoundaryBias.MIXED))
                )
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
        """Towards the targets; as long again is then spent on fresh examples."""
        begun = self.valid_test_cases
        self.optimise_targets(max_valid=begun + CLIMB_EXAMPLES)
        spent = self.valid_test_cases - begun
        self._next_climb = self.valid_test_cases + max(EXAMPLES_BEFORE_CLIMB, spent)

    def pareto_optimise(self) -> None:
        """An example that is no further, only simpler, is not what a slice is for."""

    def shrink_interesting_test_cases(self) -> None:
        left = self.time_slice.shrink_until - time.monotonic()
        engine.MAX_SHRINKING_SECONDS = max(0, left)  # type: ignore[assignment]
        super().shrink_interesting_test_cases()


@contextlib.contextmanager
def use_fuzz_engine(time_slice: TimeSlice) -> Iterator[type[FuzzEngine]]:
    """Have Hypothesis search by this engine, for as long as the block lasts."""
    made = type("SliceEngine", (FuzzEngine,), {"time_slice": time_slice})
    core: Any = hypothesis.core
    before, longest = core.ConjectureRunner, engine.MAX_SHRINKING_SECONDS
    core.ConjectureRunner = made
    try:
        yield made
    finally:
        core.ConjectureRunner = before
        engine.MAX_SHRINKING_SECONDS = longest
