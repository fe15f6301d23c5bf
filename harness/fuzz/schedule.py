"""Which test is next, and for how long: in turn, and more to those that still grow.

Each test has a clock of its own that runs while it does, faster the longer nothing new has come of
it: no line, no better target, no failure. The test whose clock is furthest behind is next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.fuzz.values import Sliced, Tally, Task

SHORTEST, LONGEST = 0.5, 15.0  # seconds of a slice
ROUNDS = 3  # that each test should have, if the budget allows
IDLE = 4  # slices without news, after which a clock runs no faster


@dataclass
class State:
    """A test of one release, as far as it has come."""

    test: Task
    tested: Tally
    clock: float = 0.0
    without_news: int = 0
    running: int = 0
    covered: dict[str, set[int]] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return not self.tested.left_out and not self.tested.exhausted

    def add(self, sliced: Sliced) -> None:
        """What a slice came to."""
        news = bool(sliced.found)
        for file, lines in sliced.covered.items():
            known = self.covered.setdefault(file, set())
            news |= not known.issuperset(lines)
            known.update(lines)
        for label, value in sliced.targets.items():
            best = self.tested.targets.get(label)
            if best is None or value > best:
                self.tested.targets[label] = value
                news = True
        self.without_news = 0 if news else self.without_news + 1
        self.tested.examples += sliced.examples
        self.tested.exhausted |= sliced.exhausted
        self.passed(sliced.seconds)

    def passed(self, seconds: float) -> None:
        self.tested.seconds += seconds
        self.tested.slices += 1
        self.clock += seconds * (1 + min(self.without_news, IDLE))


class Schedule:
    """The tests of one release."""

    def __init__(self, states: list[State], jobs: int, seconds: float) -> None:
        self.states = states
        wanted = max(1, sum(state.open for state in states)) * ROUNDS
        self.slice = min(LONGEST, max(SHORTEST, seconds * jobs / wanted))

    def next(self) -> State | None:
        """The test that is next; two workers share one only if there is no other."""
        waiting = [state for state in self.states if state.open]
        if not waiting:
            return None
        return min(waiting, key=lambda state: (state.running, state.clock))
