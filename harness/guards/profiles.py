"""How hard suites look: `smoke` for a commit, `default`, `nightly` while nobody waits."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

EXAMPLES_BY_PROFILE = {"smoke": 10, "default": 40, "nightly": 1000}
DEFAULT_PROFILE = "default"
BUGGY_EXAMPLE_FACTOR = 10
"""How much longer a bug is looked for that is known to be there: finding it ends the search."""


def load_profile(name: str) -> None:
    """Make a profile the current one. A seed says it all.

    Nothing is remembered between runs, and nothing is taken from the code that happens to be
    imported: Hypothesis would draw constants found there, and workers import in another order.
    Nor does it matter where: on a CI system Hypothesis would take its `ci` profile, under which
    no seed counts.
    """
    nothing = Constants()
    providers._get_local_constants = lambda: nothing
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


@contextlib.contextmanager
def extend_search(
    test: Callable[..., Any], factor: int = BUGGY_EXAMPLE_FACTOR, shrink: bool = True
) -> Iterator[None]:
    """Let a Hypothesis test look longer for one call, and shrink what it finds or not."""
    with _override_settings(
        test,
        lambda usual: settings(
            usual,
            max_examples=factor * usual.max_examples,
            phases=[phase for phase in usual.phases if shrink or phase is not Phase.shrink],
            print_blob=True,
        ),
    ):
        yield


@contextlib.contextmanager
def restrict_to_explicit_examples(test: Callable[..., Any]) -> Iterator[None]:
    """Let a Hypothesis test run only the examples that are written beside it."""
    with _override_settings(test, lambda usual: settings(usual, phases=[Phase.explicit])):
        yield


@contextlib.contextmanager
def _override_settings(
    test: Callable[..., Any], change_settings: Callable[[settings], settings]
) -> Iterator[None]:
    name = "_hypothesis_internal_use_settings"
    test = getattr(test, "__func__", test)  # of a method
    usual = getattr(test, name, None)
    if usual is None:
        yield
        return
    setattr(test, name, change_settings(usual))
    try:
        yield
    finally:
        setattr(test, name, usual)


def choose_seed(profile: str) -> int:
    """The same every day, except at night, where it is new and printed."""
    return random.SystemRandom().randrange(2**32) if profile == "nightly" else 0
