"""What of a release is as it was in an earlier one, wherever it stands in either.

A kernel with the same text, helpers, constants and launches has no finding that it had not before:
it is not read. Of one that has changed, what is found now is held against what was found then.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from harness.audit.collecting import Kernel, collected
from harness.audit.loading import World


class Before:
    """The kernels of an earlier release, by their names."""

    def __init__(self, place: Path) -> None:
        self.world = World(place)
        self._named: dict[str, list[Kernel]] = defaultdict(list)
        for one in collected(self.world):
            self._named[one.name].append(one)

    def named(self, kernel: Kernel) -> list[Kernel]:
        return [one for one in self._named[kernel.name] if not one.is_helper]

    def has(self, world: World, kernel: Kernel) -> bool:
        """The very kernel; of a helper only its text, since its callers change with the rest."""
        same = [one for one in self._named[kernel.name] if _text(one) == _text(kernel)]
        if kernel.is_helper:
            return bool(same)
        return any(_asked_of(self.world, one) == _asked_of(world, kernel) for one in same)


def _text(kernel: Kernel) -> str:
    return ast.unparse(kernel.node)


def _asked_of(world: World, kernel: Kernel) -> tuple[object, ...]:
    """What a kernel asks of others: code that it calls, constants, whoever launches it."""
    launches = [(one.function, one.arguments, one.grid, one.demands) for one in kernel.launches]
    try:
        return world.text(kernel.module, kernel.name), repr(launches)
    except Exception:  # it does not become a kernel here: nobody knows whether it is the same
        return (object(),)
