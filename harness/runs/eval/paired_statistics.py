"""Verdicts of paired accuracy: a base and a candidate answered the same items.

Only items with different answers show which side is better; if neither is, each such item is
a fair coin. A wealth that bets on the coins grows only if they are unfair: however often it is
checked, it exceeds 1/a with probability a at most (Ville's inequality). The same bets against "the
drop is 5 %" show that a drop is smaller. Verdicts and interval ends are such bets won, so a check
after each batch is free, and the statements agree. For one comparison at alpha 1 % the wealth
must reach 200: 9 items lost and none gained of 200 are `regressed`, 8 are not yet.

Levels are Bonferroni's: alpha is divided by the comparisons and by two sides. Holm's steps would be
valid too (1 / wealth is a p-value), but they help only when other comparisons are known to fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.matrices import schema

ALPHA = 0.01  # over all comparisons of an evaluation: one false alarm in a hundred
TOLERANCE = schema.DEFAULT_TOLERANCE
DEFAULT_ITEMS = schema.DEFAULT_ITEMS
BATCH_ITEMS = 50
MAX_ITEMS = 800
MAX_ESTIMATED_ITEMS = 1_000_000  # items; an estimate beyond it is 'never'

# The parts of its capital that each bettor stakes, and the share of the one that stakes all.
# Staking all wins soonest if no item goes the other way; the others lose less if one does.
ALL_IN_SHARE = 0.4
STAKES = tuple(1 / (1 + math.exp(-z)) for z in range(-3, 4))

ItemScore = bool | None  # right or wrong; None for an error


class DifferentItemsError(UnfixError):
    """Base and candidate have different items, so they cannot be compared."""


@dataclass(frozen=True)
class PairedCounts:
    """Counts of items by the answers of both sides; an error counts by its possible answers."""

    both_right: int = 0
    both_wrong: int = 0
    lost: int = 0  # base right, candidate wrong
    gained: int = 0  # base wrong, candidate right
    may_lose: int = 0  # lost or alike, depending on the missing answer
    may_gain: int = 0  # gained or alike
    may_either: int = 0  # neither side answered

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 0:
            raise ValueError(f"counts are not negative: {self}")

    @classmethod
    def from_answers(
        cls, base: Mapping[str, ItemScore], candidate: Mapping[str, ItemScore]
    ) -> PairedCounts:
        """Count from each side's answers by item (an item with a seed is one item)."""
        if base.keys() != candidate.keys():
            alone = [
                f"only the {side} has {_name_some_items(mine.keys() - others.keys())}"
                for side, mine, others in (
                    ("base", base, candidate),
                    ("candidate", candidate, base),
                )
                if mine.keys() - others.keys()
            ]
            raise DifferentItemsError(f"base and candidate ran different items: {'; '.join(alone)}")
        if not base:
            raise UnfixError("the task has no items")
        counts = dict.fromkeys(_COUNT_FIELDS.values(), 0)
        for item, answer in base.items():
            counts[_COUNT_FIELDS[answer, candidate[item]]] += 1
        return cls(**counts)

    def __add__(self, other: PairedCounts) -> PairedCounts:
        return PairedCounts(**{name: n + getattr(other, name) for name, n in vars(self).items()})

    @property
    def items(self) -> int:
        return sum(vars(self).values())

    @property
    def errors(self) -> int:
        return self.may_lose + self.may_gain + self.may_either

    @property
    def drop(self) -> float:
        """The drop as a share of all items; each error may change it by one item."""
        return (self.lost - self.gained) / self.items

    @property
    def at_best(self) -> tuple[int, int, int]:
        """Lost, alike and gained, with each error counted in the candidate's favour."""
        gained = self.gained + self.may_gain + self.may_either
        return self.lost, self.items - self.lost - gained, gained

    @property
    def at_worst(self) -> tuple[int, int, int]:
        lost = self.lost + self.may_lose + self.may_either
        return lost, self.items - lost - self.gained, self.gained


_COUNT_FIELDS: dict[tuple[ItemScore, ItemScore], str] = {
    (True, True): "both_right",
    (False, False): "both_wrong",
    (True, False): "lost",
    (False, True): "gained",
    (True, None): "may_lose",
    (None, False): "may_lose",
    (False, None): "may_gain",
    (None, True): "may_gain",
    (None, None): "may_either",
}


def _name_some_items(items: set[str]) -> str:
    named = ", ".join(sorted(items)[:3])
    return named if len(items) <= 3 else f"{named} and {len(items) - 3} more"


def compute_mcnemar_p(lost: int, gained: int) -> tuple[float, float]:
    """Compute exact p-values, one-sided and two-sided; valid for a single check."""
    more, fewer = (
        _compute_binomial_tail(gained, lost + gained),
        _compute_binomial_tail(lost, lost + gained),
    )
    return more, min(1.0, 2 * min(more, fewer))


def _compute_binomial_tail(max_heads: int, coins: int) -> float:
    """Return the odds that of so many fair coins this many or fewer show heads."""
    total = term = 1
    for k in range(max_heads):
        term = term * (coins - k) // (k + 1)
        total += term
    return float(total / (1 << coins))


def compute_log_wealth(lost: float, unchanged: float, gained: float, drop: float) -> float:
    """Return the log of the wealth won by betting on a larger drop than this.

    A share that pays 2 for an item lost, 1 for one alike, 0 for one gained is worth at most
    1 + drop if the drop is no larger, so buying it at that price has no expected gain.
    """
    if not -1 < drop < 1:
        raise ValueError(f"a drop lies between -1 and 1, not at {drop}")
    share = 1 / (1 + drop)
    logs = [
        math.log((1 - ALL_IN_SHARE) / len(STAKES))
        + lost * math.log(1 - stake + 2 * stake * share)
        + unchanged * math.log(1 - stake + stake * share)
        + gained * math.log(1 - stake)
        for stake in STAKES
    ]
    if not gained:
        logs.append(
            math.log(ALL_IN_SHARE) + lost * math.log(2 * share) + unchanged * math.log(share)
        )
    highest = max(logs)
    return highest + math.log(sum(math.exp(log - highest) for log in logs))


def compute_required_log_wealth(comparison_count: int, alpha: float = ALPHA) -> float:
    """Return the log of the wealth that each side of each cell has to reach."""
    if comparison_count < 1:
        raise ValueError(f"a matrix has at least one cell, not {comparison_count}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha lies between 0 and 1, not at {alpha}")
    return math.log(2 * comparison_count / alpha)


OutcomeCounts = tuple[float, float, float]


def decide_verdict(
    at_best: OutcomeCounts, at_worst: OutcomeCounts, required_log_wealth: float, tolerance: float
) -> Verdict:
    """Return the verdict at this log of wealth. A proven change counts even if it is small."""
    if compute_log_wealth(*at_best, 0.0) >= required_log_wealth:
        return Verdict.REGRESSED
    if compute_log_wealth(*at_worst[::-1], 0.0) >= required_log_wealth:
        return Verdict.IMPROVED
    if (
        compute_log_wealth(*at_worst[::-1], -tolerance) >= required_log_wealth
        and compute_log_wealth(*at_best, -tolerance) >= required_log_wealth
    ):
        return Verdict.SAME
    return Verdict.CANNOT_TELL


def compute_drop_interval(pair: PairedCounts, required_log_wealth: float) -> tuple[float, float]:
    """Compute the drops that the bets have not ruled out, for any answers in place of errors.

    Newcombe's and Tango's intervals are narrower, and valid for one check at a fixed number of
    items. This interval is valid at every check.
    """
    return _find_least_drop(pair.at_best, required_log_wealth), -_find_least_drop(
        pair.at_worst[::-1], required_log_wealth
    )


def _find_least_drop(counts: OutcomeCounts, required_log_wealth: float) -> float:
    """Find by bisection the largest drop that is ruled out as too small."""
    low, high = -1.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if compute_log_wealth(*counts, middle) >= required_log_wealth:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class AccuracyJudgement:
    """The verdict of one comparison, and the numbers behind it."""

    verdict: Verdict
    pair: PairedCounts
    low: float  # ends of the drop's interval, at the level of the verdict
    high: float
    mcnemar_p: float  # exact McNemar, two sides; not corrected for checks or cells
    further_items: int | None  # estimate of the items missing for a verdict; None: out of reach

    @property
    def drop(self) -> float:
        return self.pair.drop

    def __str__(self) -> str:
        pair = self.pair
        text = (
            f"{self.verdict}: drop {self.drop:+.1%} [{self.low:+.1%}, {self.high:+.1%}], "
            f"{pair.lost} lost and {pair.gained} gained of {pair.items} items"
        )
        if pair.errors:
            text += f", {pair.errors} unanswered by a side"
        if self.verdict is Verdict.CANNOT_TELL:
            if self.further_items is None:
                text += "; more such items would not tell"
            else:
                text += f"; about {self.further_items} more items would tell"
        return text


def judge_pair(
    pair: PairedCounts,
    *,
    comparison_count: int = 1,
    tolerance: float = TOLERANCE,
) -> AccuracyJudgement:
    """Judge one of so many comparisons; valid after any number of earlier checks."""
    if not 0 < tolerance < 1:
        raise ValueError(f"a tolerance lies between 0 and 1, not at {tolerance}")
    if not pair.items:
        raise UnfixError("the task has no items")
    wealth = compute_required_log_wealth(comparison_count)
    verdict = decide_verdict(pair.at_best, pair.at_worst, wealth, tolerance)
    low, high = compute_drop_interval(pair, wealth)
    more: int | None = 0
    if verdict is Verdict.CANNOT_TELL:
        more = estimate_further_items(pair, wealth, tolerance)
    return AccuracyJudgement(
        verdict,
        pair,
        low,
        high,
        compute_mcnemar_p(pair.lost, pair.gained)[1],
        more,
    )


def estimate_further_items(
    pair: PairedCounts, required_log_wealth: float, tolerance: float
) -> int | None:
    """Estimate the items missing for a verdict, at the rates of the items so far."""

    def is_decisive(items: int) -> bool:
        part = items / pair.items
        best, worst = (
            (lost * part, alike * part, gained * part)
            for lost, alike, gained in (pair.at_best, pair.at_worst)
        )
        return (
            decide_verdict(best, worst, required_log_wealth, tolerance) is not Verdict.CANNOT_TELL
        )

    known, enough = pair.items, 2 * pair.items
    while not is_decisive(enough):
        known, enough = enough, 2 * enough
        if known > MAX_ESTIMATED_ITEMS:
            return None
    while enough - known > 1:
        middle = (known + enough) // 2
        known, enough = (known, middle) if is_decisive(middle) else (middle, enough)
    return enough - pair.items
