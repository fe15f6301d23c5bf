"""Profiles, which set the number of examples: `smoke` for a commit, `default`, and `nightly`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from harness.core import preparation
from harness.guards import hypothesis_adapter

EXAMPLES_BY_PROFILE = {"smoke": 10, "default": 40, "nightly": 1000}
DEFAULT_PROFILE = "default"
# The reverted run draws ten times as many examples: its bug is known to exist, and the search ends
# at the first failure.
BUGGY_EXAMPLE_FACTOR = 10
# Shrinking may end after so many calls in a row that find nothing simpler, where Hypothesis has
# 200. As there, each success allows up to twice the calls that it took.
MAX_STALLED_CALLS = 30


def load_profile(name: str) -> None:
    """Load a profile under which examples depend on the seed alone.

    So there is no database, and no constants are drawn from imported code (workers import in
    different orders). The parent is named: on a CI system Hypothesis would choose its `ci` profile,
    under which no seed counts.
    """
    hypothesis_adapter.ignore_imported_constants()
    settings.register_profile(
        f"unfix-{name}",
        parent=settings.get_profile("default"),
        max_examples=EXAMPLES_BY_PROFILE[name],
        deadline=None if name == "nightly" else timedelta(seconds=60),
        database=None,
        print_blob=True,
        report_multiple_bugs=False,  # one counterexample, the smallest
        phases=(Phase.explicit, Phase.generate, Phase.target, Phase.shrink),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
    settings.load_profile(f"unfix-{name}")
    # What is built or compiled in an example is ready for the next one, and no part of its time.
    if hypothesis_adapter.leave_out_of_deadline not in preparation.LISTENERS:
        preparation.LISTENERS.append(hypothesis_adapter.leave_out_of_deadline)


@contextlib.contextmanager
def extend_search(
    test: Callable[..., Any], factor: int = BUGGY_EXAMPLE_FACTOR, shrink: bool = True
) -> Iterator[None]:
    """Draw more examples in a `@given` test during the block, with or without shrinking."""

    def extend(usual: settings) -> settings:
        phases = [phase for phase in usual.phases if shrink or phase is not Phase.shrink]
        examples = factor * usual.max_examples
        return settings(usual, max_examples=examples, phases=phases, print_blob=True)

    with (
        hypothesis_adapter.override_settings(test, extend),
        hypothesis_adapter.end_stalled_shrinking(MAX_STALLED_CALLS),
    ):
        yield


def restrict_to_explicit_examples(
    test: Callable[..., Any],
) -> contextlib.AbstractContextManager[None]:
    """Run only the `@example`s of a `@given` test during the block."""
    return hypothesis_adapter.override_settings(
        test, lambda usual: settings(usual, phases=[Phase.explicit])
    )


def choose_seed(profile: str) -> int:
    """Return 0, or for `nightly` a new seed, which is printed."""
    return random.SystemRandom().randrange(2**32) if profile == "nightly" else 0
