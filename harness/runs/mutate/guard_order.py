"""The order of guards for a fault, and their time limits, from the results of the run so far."""

from __future__ import annotations

from collections import Counter

from harness.runs.mutate.line_coverage import GuardCoverage
from harness.store.mutate.faults import MutationFault

QUICK_GUARD_SECONDS = 0.2  # below this, differences between guards do not matter
MIN_LIMIT_SECONDS = 5.0  # the base of a guard's limit
LIMIT_FACTOR = 5.0  # added: this many times its usual seconds
TRACING_SLOWDOWN = 3.0  # about, while a guard's lines are recorded


class GuardOrder:
    """The kills so far, by guard and by target, and the seconds of each guard.

    Example: a guard of 0.8 s with 4 kills, 2 of them in the same function, has the rank
    (1 + 4 + 8 * 2) / (0.2 + 0.8) = 21, and runs before one of 0.1 s without a kill (3.3).
    """

    def __init__(self) -> None:
        self._kills: Counter[str] = Counter()
        self._kills_by_target: Counter[tuple[str, str]] = Counter()
        self._seconds_by_guard: dict[str, float] = {}

    def record_kill(self, fault: MutationFault, guard: str) -> None:
        self._kills[guard] += 1
        self._kills_by_target[fault.target, guard] += 1

    def record_pass(self, guard: str, seconds: float) -> None:
        """Record the seconds of an untraced pass; the longest time counts."""
        self._seconds_by_guard[guard] = max(seconds, self._seconds_by_guard.get(guard, 0.0))

    def estimate_seconds(self, guard: GuardCoverage) -> float:
        return self._seconds_by_guard.get(guard.guard, guard.seconds / TRACING_SLOWDOWN)

    def compute_limit(self, guard: GuardCoverage, example_factor: int) -> float:
        """Return the seconds after which a guard counts as hanging."""
        return MIN_LIMIT_SECONDS + LIMIT_FACTOR * self.estimate_seconds(guard) * example_factor

    def sort_guards(
        self, fault: MutationFault, reaching_guards: list[GuardCoverage]
    ) -> list[GuardCoverage]:
        """Sort by kills per second; a kill in the same function counts nine times."""

        def rank_guard(guard: GuardCoverage) -> tuple[float, str]:
            name = guard.guard
            kills = 1 + self._kills[name] + 8 * self._kills_by_target[fault.target, name]
            return -kills / (QUICK_GUARD_SECONDS + self.estimate_seconds(guard)), name

        return sorted(reaching_guards, key=rank_guard)
