"""How hard suites look: `smoke` for a commit, `default`, `nightly` while nobody waits."""

from __future__ import annotations

import random
from datetime import timedelta

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = {"smoke": 10, "default": 40, "nightly": 1000}
DEFAULT = "default"


def load(name: str) -> None:
    """Make a profile the current one. Nothing is remembered between runs: a seed says it all."""
    settings.register_profile(
        f"unfix-{name}",
        max_examples=EXAMPLES[name],
        deadline=None if name == "nightly" else timedelta(seconds=60),
        database=None,
        print_blob=True,
        report_multiple_bugs=False,  # one counterexample, the smallest
        phases=(Phase.explicit, Phase.generate, Phase.target, Phase.shrink),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
    settings.load_profile(f"unfix-{name}")


def seed_for(profile: str) -> int:
    """The same every day, except at night, where it is new and printed."""
    return random.SystemRandom().randrange(2**32) if profile == "nightly" else 0
