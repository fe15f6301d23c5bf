"""In which order guards look at a fault, and how long each may: learnt as the run goes."""

from __future__ import annotations

from collections import Counter

from harness.mutate.reach import Reached
from harness.store.mutate.faults import Fault

QUICK = 0.2  # seconds below which one guard is as quick as another
AT_LEAST = 5.0  # seconds that a guard may take in any case, and then
TIMES = 5.0  # so many times what it took
SLOWER = 3.0  # a guard is, more or less, while its lines are recorded


class Order:
    """What has killed what so far."""

    def __init__(self) -> None:
        self._kills: Counter[str] = Counter()
        self._there: Counter[tuple[str, str]] = Counter()  # by target, too
        self._took: dict[str, float] = {}

    def killed(self, fault: Fault, guard: str) -> None:
        self._kills[guard] += 1
        self._there[fault.target, guard] += 1

    def passed(self, guard: str, seconds: float) -> None:
        """Without tracing, and with nothing found: that is how long it takes."""
        self._took[guard] = max(seconds, self._took.get(guard, 0.0))

    def seconds(self, one: Reached) -> float:
        return self._took.get(one.guard, one.seconds / SLOWER)

    def limit(self, one: Reached, examples: int) -> float:
        """When a guard counts as one that hangs."""
        return AT_LEAST + TIMES * self.seconds(one) * examples

    def of(self, fault: Fault, reaching: list[Reached]) -> list[Reached]:
        """Those that killed most in a second; a kill in the same function counts more."""

        def worth(one: Reached) -> float:
            kills = 1 + self._kills[one.guard] + 8 * self._there[fault.target, one.guard]
            return kills / (QUICK + self.seconds(one))

        return sorted(reaching, key=lambda one: (-worth(one), one.guard))
