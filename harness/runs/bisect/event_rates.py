"""How often an event happens in runs: counts, likelihoods, and a sequential test of two rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

PRIOR_NEVER_WITHOUT_CAUSE = 0.9  # the prior odds that without its cause the event never happens
NOISE_BETA_PRIOR = (1.0, 9.0)  # otherwise its rate's prior, a Beta


@dataclass
class EventCount:
    runs: int = 0
    events: int = 0

    def add_run(self, event: bool) -> None:
        self.runs += 1
        self.events += event


@lru_cache(maxsize=100_000)
def compute_log_likelihood(
    often_runs: int, often_events: int, runs: int, events: int, least_detectable_rate: float
) -> float:
    """Return the log likelihood of counts where the event happens often, and where seldom.

    'Often' is any rate above the least one that the number of runs can detect.
    """
    if often_runs and events * often_runs >= often_events * runs and events:
        # No more frequent here than elsewhere: as likely as under the null hypothesis.
        return compute_null_log_likelihood(often_runs + runs, often_events + events)
    noisy = math.log(1 - PRIOR_NEVER_WITHOUT_CAUSE) + _compute_log_beta(
        NOISE_BETA_PRIOR[0] + events, NOISE_BETA_PRIOR[1] + runs - events
    )
    noisy -= _compute_log_beta(*NOISE_BETA_PRIOR)
    often = _compute_log_beta(1 + often_events, 1 + often_runs - often_events)
    if not often_events:
        often += often_runs * math.log(1 - least_detectable_rate)
    if events:
        return often + noisy
    return often + math.log(PRIOR_NEVER_WITHOUT_CAUSE + math.exp(noisy))


@lru_cache(maxsize=100_000)
def compute_null_log_likelihood(runs: int, events: int) -> float:
    """Return the log likelihood of the counts if no toggle makes a difference."""
    return _compute_log_beta(1 + events, 1 + runs - events)


def _compute_log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def compute_entropy(rate: float) -> float:
    if rate <= 0 or rate >= 1:
        return 0.0
    return -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)


class SequentialRateTest:
    """A sequential test of whether the first of two events happens more often.

    The e-value is a product of bets against the null hypothesis 'no more often'. Under it the value
    exceeds 1/alpha with a probability of at most alpha, at any time and for any rates.
    """

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self.e_value = 1.0
        self.first_count = EventCount()
        self.second_count = EventCount()

    def add_pair(self, first: bool, second: bool) -> None:
        # Rates that the earlier pairs predict for this one.
        a = (self.first_count.events + 0.5) / (self.first_count.runs + 1)
        b = (self.second_count.events + 0.18) / (self.second_count.runs + 1)
        if a > b:
            both = (a + b) / 2
            under = (a if first else 1 - a) * (b if second else 1 - b)
            null = (both if first else 1 - both) * (both if second else 1 - both)
            self.e_value *= under / null
        self.first_count.add_run(first)
        self.second_count.add_run(second)

    @property
    def is_decided(self) -> bool:
        return self.e_value >= 1 / self.alpha

    @property
    def counts_text(self) -> str:
        first, second = self.first_count, self.second_count
        return f"{first.events}/{first.runs} and {second.events}/{second.runs} times"
