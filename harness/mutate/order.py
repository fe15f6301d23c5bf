"""In which order guards look at a fault: whoever is likely to end the search soonest."""

from __future__ import annotations

from collections import Counter

from harness.mutate.faults import Fault
from harness.mutate.reach import Reached

QUICK = 0.2  # seconds below which one guard is as quick as another


class Order:
    """What has killed what so far."""

    def __init__(self) -> None:
        self._kills: Counter[str] = Counter()
        self._there: Counter[tuple[str, str]] = Counter()  # by target, too

    def killed(self, fault: Fault, guard: str) -> None:
        self._kills[guard] += 1
        self._there[fault.target, guard] += 1

    def of(self, fault: Fault, reaching: list[Reached]) -> list[Reached]:
        """Those that killed most in a second; a kill in the same function counts more."""

        def worth(one: Reached) -> float:
            kills = 1 + self._kills[one.guard] + 8 * self._there[fault.target, one.guard]
            return kills / (QUICK + one.seconds)

        return sorted(reaching, key=lambda one: (-worth(one), one.guard))
