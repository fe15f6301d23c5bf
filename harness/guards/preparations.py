"""A test's marker may name a function that prepares it, before it is timed and before it is forked.

    pytestmark = pytest.mark.prepared(by=build_modules, names=("moe.dsv4",))

calls `build_modules("moe.dsv4")` in the setup of each test. Where tests run in forks, a supervisor
calls it before them, without the test's toggles and under them, so that the forks find it done.

Invariant: a supervisor prepares by one function alone. So a preparation may change its process for
good (the virtual GPU), and no test without it runs there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

PREPARED_MARKER = "prepared"


@dataclass(frozen=True)
class TestPreparation:
    """A function that prepares tests, and its arguments for one test."""

    function: Callable[..., object]
    names: tuple[str, ...]

    def run(self) -> None:
        self.function(*self.names)

    def try_run(self) -> bool:
        """Run it ahead of its tests; return whether it succeeded. If not, they report it."""
        try:
            self.run()
        except (Exception, pytest.skip.Exception, pytest.fail.Exception):
            return False
        return True


def read_preparation(item: pytest.Item) -> TestPreparation | None:
    marker = item.get_closest_marker(PREPARED_MARKER)
    return None if marker is None else TestPreparation(marker.kwargs["by"], marker.kwargs["names"])
