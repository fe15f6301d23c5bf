"""In which order guards look at a fault, and how long each may: learnt as the run goes."""

from __future__ import annotations

from collections import Counter

from harness.runs.mutate.line_coverage import GuardCoverage
from harness.store.mutate.faults import MutationFault

QUICK_GUARD_SECONDS = 0.2  # seconds below which one guard is as quick as another
MIN_LIMIT_SECONDS = 5.0  # seconds that a guard may take in any case, and then
LIMIT_FACTOR = 5.0  # so many times what it took
TRACING_SLOWDOWN = 3.0  # a guard is, more or less, while its lines are recorded


class GuardOrder:
    """What has killed what so far."""

    def __init__(self) -> None:
        self._kills: Counter[str] = Counter()
        self._kills_by_target: Counter[tuple[str, str]] = Counter()  # by target, too
        self._seconds_by_guard: dict[str, float] = {}

    def record_kill(self, fault: MutationFault, guard: str) -> None:
        self._kills[guard] += 1
        self._kills_by_target[fault.target, guard] += 1

    def record_pass(self, guard: str, seconds: float) -> None:
        """Without tracing, and with nothing found: that is how long it takes."""
        self._seconds_by_guard[guard] = max(seconds, self._seconds_by_guard.get(guard, 0.0))

    def estimate_seconds(self, guard: GuardCoverage) -> float:
        return self._seconds_by_guard.get(guard.guard, guard.seconds / TRACING_SLOWDOWN)

    def compute_limit(self, guard: GuardCoverage, example_factor: int) -> float:
        """When a guard counts as one that hangs."""
        return MIN_LIMIT_SECONDS + LIMIT_FACTOR * self.estimate_seconds(guard) * example_factor

    def sort_guards(
        self, fault: MutationFault, reaching_guards: list[GuardCoverage]
    ) -> list[GuardCoverage]:
        """Those that killed most in a second; a kill in the same function counts more."""

        def worth(one: GuardCoverage) -> float:
            kills = 1 + self._kills[one.guard] + 8 * self._kills_by_target[fault.target, one.guard]
            return kills / (QUICK_GUARD_SECONDS + self.estimate_seconds(one))

        return sorted(reaching_guards, key=lambda one: (-worth(one), one.guard))
