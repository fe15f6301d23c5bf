"""What it means that a base and a candidate answered the same items differently.

Only items that the two answered differently say anything about who is better: if neither is, each
is a fair coin. A wealth that bets on those coins grows only if they are not fair, and however often
one looks at it, it exceeds 1/a with a probability of at most a (Ville's inequality). The same bets
against 'the drop is 5 %' say when it is less. All that is said here (a verdict, the ends of the
interval) is such a bet won, so looks after each batch cost nothing and no two statements disagree.

Levels are Bonferroni's: a night's alpha is divided by its cells and by two sides. Holm's steps
would be valid as well (1 / wealth is a p-value), but they only help a cell when others are already
known to be broken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from harness.errors import UnfixError

ALPHA = 0.01  # a night, over all its cells: one false alarm in a hundred nights
TOLERANCE = 0.05  # 'same' excludes a change of this or more
ITEMS = 200  # without a single difference they say 'same' in up to 69 cells
BATCH = 50
LIMIT = 800
FARTHEST = 1_000_000  # items; an estimate beyond it is 'never'

# The parts of its capital that a bettor stakes, and how much of the wealth each bettor has. Staking
# all wins soonest where not one item goes the other way; the others lose less when one does.
ALL_IN = 0.4
STAKES = tuple(1 / (1 + math.exp(-z)) for z in range(-3, 4))

Answer = bool | None  # right or wrong; None: an error, so nobody knows


class Verdict(StrEnum):
    REGRESSED = "regressed"
    IMPROVED = "improved"
    SAME = "same"
    CANNOT_TELL = "cannot-tell"


class DifferentItems(UnfixError):
    """Base and candidate were not asked the same, so nothing can be said about them."""


@dataclass(frozen=True)
class Pair:
    """How the two did on the same items. What a side could not answer is kept by what it may be."""

    both_right: int = 0
    both_wrong: int = 0
    lost: int = 0  # base right, candidate wrong
    gained: int = 0  # base wrong, candidate right
    may_lose: int = 0  # lost or alike, whatever the missing answer is
    may_gain: int = 0  # gained or alike
    may_either: int = 0  # neither side answered

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 0:
            raise ValueError(f"counts are not negative: {self}")

    @classmethod
    def of(cls, base: Mapping[str, Answer], candidate: Mapping[str, Answer]) -> Pair:
        """Counted from each side's answers by item (an item with a seed is one item)."""
        if base.keys() != candidate.keys():
            alone = [
                f"only the {side} has {_some(mine.keys() - others.keys())}"
                for side, mine, others in (
                    ("base", base, candidate),
                    ("candidate", candidate, base),
                )
                if mine.keys() - others.keys()
            ]
            raise DifferentItems(f"base and candidate ran different items: {'; '.join(alone)}")
        if not base:
            raise UnfixError("the task has no items")
        counts = dict.fromkeys(_KINDS.values(), 0)
        for item, answer in base.items():
            counts[_KINDS[answer, candidate[item]]] += 1
        return cls(**counts)

    def __add__(self, other: Pair) -> Pair:
        return Pair(**{name: n + getattr(other, name) for name, n in vars(self).items()})

    @property
    def items(self) -> int:
        return sum(vars(self).values())

    @property
    def errors(self) -> int:
        return self.may_lose + self.may_gain + self.may_either

    @property
    def discordant(self) -> int:
        return self.lost + self.gained

    @property
    def drop(self) -> float:
        """Of all items; each error leaves it open by one item."""
        return (self.lost - self.gained) / self.items

    @property
    def at_best(self) -> tuple[int, int, int]:
        """Lost, alike and gained, with each error as kind to the candidate as it can be."""
        gained = self.gained + self.may_gain + self.may_either
        return self.lost, self.items - self.lost - gained, gained

    @property
    def at_worst(self) -> tuple[int, int, int]:
        lost = self.lost + self.may_lose + self.may_either
        return lost, self.items - lost - self.gained, self.gained


_KINDS: dict[tuple[Answer, Answer], str] = {
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


def _some(items: set[str]) -> str:
    named = ", ".join(sorted(items)[:3])
    return named if len(items) <= 3 else f"{named} and {len(items) - 3} more"


def mcnemar(lost: int, gained: int) -> tuple[float, float]:
    """Exact p-values that it lost more, and that it lost more or fewer. Fair for one look alone."""
    more, fewer = _heads(gained, lost + gained), _heads(lost, lost + gained)
    return more, min(1.0, 2 * min(more, fewer))


def _heads(most: int, coins: int) -> float:
    """The odds that of so many fair coins this many or fewer show heads."""
    total = term = 1
    for k in range(most):
        term = term * (coins - k) // (k + 1)
        total += term
    return float(total / (1 << coins))


def evidence(lost: float, alike: float, gained: float, drop: float) -> float:
    """The log of the wealth won by betting on a larger drop than this.

    A share that pays 2 for an item lost, 1 for one alike, 0 for one gained is worth at most
    1 + drop if the drop is no larger, so buying it at that price wins nothing in the long run.
    """
    if not -1 < drop < 1:
        raise ValueError(f"a drop lies between -1 and 1, not at {drop}")
    share = 1 / (1 + drop)
    logs = [
        math.log((1 - ALL_IN) / len(STAKES))
        + lost * math.log(1 - stake + 2 * stake * share)
        + alike * math.log(1 - stake + stake * share)
        + gained * math.log(1 - stake)
        for stake in STAKES
    ]
    if not gained:
        logs.append(math.log(ALL_IN) + lost * math.log(2 * share) + alike * math.log(share))
    highest = max(logs)
    return highest + math.log(sum(math.exp(log - highest) for log in logs))


def wanted(cells: int, alpha: float = ALPHA) -> float:
    """The log of the wealth that each side of each cell has to reach."""
    if cells < 1:
        raise ValueError(f"a matrix has at least one cell, not {cells}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha lies between 0 and 1, not at {alpha}")
    return math.log(2 * cells / alpha)


Counts = tuple[float, float, float]


def decide(at_best: Counts, at_worst: Counts, wealth: float, tolerance: float) -> Verdict:
    """The verdict at this log of wealth. A proven change is told as such even if it is small."""
    if evidence(*at_best, 0.0) >= wealth:
        return Verdict.REGRESSED
    if evidence(*at_worst[::-1], 0.0) >= wealth:
        return Verdict.IMPROVED
    if evidence(*at_worst[::-1], -tolerance) >= wealth and evidence(*at_best, -tolerance) >= wealth:
        return Verdict.SAME
    return Verdict.CANNOT_TELL


def interval(pair: Pair, wealth: float) -> tuple[float, float]:
    """All drops that the bets have not ruled out; whatever the errors would have answered.

    Newcombe's and Tango's intervals are narrower and right for one look at a number of items
    fixed beforehand. This one holds at whatever look one stops.
    """
    return _least(pair.at_best, wealth), -_least(pair.at_worst[::-1], wealth)


def _least(counts: Counts, wealth: float) -> float:
    """The end of the drops that are ruled out as too small, by halving."""
    low, high = -1.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if evidence(*counts, middle) >= wealth:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Judgement:
    """What can be said of a cell, and on what grounds."""

    verdict: Verdict
    pair: Pair
    low: float  # the drop lies between these, at the level of the verdict
    high: float
    p: float  # exact McNemar, two sides; not corrected for looks or cells
    wealth: float  # of the bet on a drop; 'regressed' from 2 * cells / alpha
    tolerance: float
    more: int | None  # items estimated to be missing for a verdict; None: out of reach

    @property
    def drop(self) -> float:
        return self.pair.drop

    def __str__(self) -> str:
        pair = self.pair
        said = (
            f"{self.verdict}: drop {self.drop:+.1%} [{self.low:+.1%}, {self.high:+.1%}], "
            f"{pair.lost} lost and {pair.gained} gained of {pair.items} items"
        )
        if pair.errors:
            said += f", {pair.errors} unanswered by a side"
        if self.verdict is Verdict.CANNOT_TELL:
            if self.more is None:
                said += "; more such items would not tell"
            else:
                said += f"; about {self.more} more items would tell"
        return said


def judge(
    pair: Pair, *, cells: int = 1, alpha: float = ALPHA, tolerance: float = TOLERANCE
) -> Judgement:
    """One look at one of so many cells; fair after any number of earlier looks."""
    if not 0 < tolerance < 1:
        raise ValueError(f"a tolerance lies between 0 and 1, not at {tolerance}")
    if not pair.items:
        raise UnfixError("the task has no items")
    wealth = wanted(cells, alpha)
    verdict = decide(pair.at_best, pair.at_worst, wealth, tolerance)
    low, high = interval(pair, wealth)
    more: int | None = 0
    if verdict is Verdict.CANNOT_TELL:
        more = further(pair, wealth, tolerance)
    return Judgement(
        verdict,
        pair,
        low,
        high,
        mcnemar(pair.lost, pair.gained)[1],
        math.exp(min(700.0, evidence(*pair.at_best, 0.0))),
        tolerance,
        more,
    )


def further(pair: Pair, wealth: float, tolerance: float) -> int | None:
    """How many more items tell, if they come out as those so far did. An estimate, no promise."""

    def tells(items: int) -> bool:
        part = items / pair.items
        best, worst = (
            (lost * part, alike * part, gained * part)
            for lost, alike, gained in (pair.at_best, pair.at_worst)
        )
        return decide(best, worst, wealth, tolerance) is not Verdict.CANNOT_TELL

    known, enough = pair.items, 2 * pair.items
    while not tells(enough):
        known, enough = enough, 2 * enough
        if known > FARTHEST:
            return None
    while enough - known > 1:
        middle = (known + enough) // 2
        known, enough = (known, middle) if tells(middle) else (middle, enough)
    return enough - pair.items
