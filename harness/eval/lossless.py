"""Whether what must not change an answer (a cache, a draft model, a kernel) changes one.

Two servers that add in another order give logprobs that differ in the last digits, and where two
tokens are nearly alike the other one wins. What counts as nearly is measured: the base is run
twice, best in another order or batch size, and how far it is from itself is the noise. A token
that differs counts as noise only if all that is known about it says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.errors import UnfixError

# The noise is at least this. In 16 bits it is half a step of a logit between 16 and 32, which is
# what rounding alone does to it; in 32 bits a step is 2e-6, and sums in another order are the more.
EPSILON = {"float32": 1e-4, "float16": 2.0**-7, "bfloat16": 2.0**-4}
# A sure token's likelihood hardly moves, whatever moves below it: how far it is above the runner-up
# does. Two logits, each through all layers; measured between plain transformers in float32 and
# served models of a few layers: 0.023 and 0.086 in float16.
MARGIN = {"float32": 4e-3, "float16": 2.0**-4, "bfloat16": 0.5}
ALIKE = 8  # times less, where nothing but a toggle is between two and the repeat was measured
TRUSTED = 4.0  # times the least margin: a base farther from float32 than that may be wrong itself
FACTOR = 2.0  # times the noise: what logprobs may differ by, and what a near-tie's margin may be
CEILING = 0.5  # a base that is farther from itself than this is no measure of anything


class Verdict(StrEnum):
    EQUAL = "equal"
    NEAR_TIE = "near-tie"  # a token differs, where the base was as near to the other one
    CANNOT_TELL = "cannot-tell"
    DRIFTS = "drifts"  # the logprobs differ by more than noise, and no token did before
    DIFFERS = "differs"  # a token differs where the base was sure, or a logprob is no number


WORST = tuple(Verdict)  # the last is the worst


@dataclass(frozen=True)
class Output:
    """One answer. A margin is the chosen token's logprob less the best other one's."""

    tokens: Sequence[object]
    logprobs: Sequence[float] | None = None
    margins: Sequence[float] | None = None
    error: str = ""  # what the server said instead of an answer

    def __post_init__(self) -> None:
        for name in ("logprobs", "margins"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.tokens):
                raise UnfixError(f"{len(self.tokens)} tokens with {len(values)} {name}")

    def logprob(self, at: int) -> float | None:
        return _at(self.logprobs, at)

    def margin(self, at: int) -> float | None:
        """How sure it was; at least that, where only the chosen token's logprob is known."""
        known = _at(self.margins, at)
        return None if known is None else abs(known)

    def surely(self, at: int) -> float:
        """The least that the margin can be: the others share what the chosen token leaves."""
        known = self.margin(at)
        if known is not None:
            return known
        logprob = self.logprob(at)
        if logprob is None or logprob < math.log(0.5):
            return 0.0
        rest = -math.expm1(logprob)
        return math.inf if rest <= 0 else logprob - math.log(rest)

    @property
    def broken(self) -> int | None:
        """The first position with a logprob or a margin that is no number."""
        bad = [at for at, one in enumerate(self.logprobs or ()) if not math.isfinite(one)]
        bad += [at for at, one in enumerate(self.margins or ()) if math.isnan(one)]
        return min(bad, default=None)  # an infinite margin is one token alone allowed


def _at(values: Sequence[float] | None, at: int) -> float | None:
    return values[at] if values is not None and at < len(values) else None


def parting(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first position at which they differ; one that ends early differs where it ended."""
    for at, (mine, others) in enumerate(zip(one, other, strict=False)):
        if mine != others:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))


def _apart(one: Output, other: Output, upto: int | None) -> list[float]:
    """How far the logprobs are apart, where both chose the same tokens so far."""
    if one.logprobs is None or other.logprobs is None:
        return []
    pairs = zip(one.logprobs[:upto], other.logprobs[:upto], strict=False)
    return [abs(mine - others) for mine, others in pairs]


def _margins_apart(one: Output, other: Output, upto: int | None) -> list[float]:
    """How far the margins are apart there; of a token that alone was allowed, none is known."""
    if one.margins is None or other.margins is None:
        return []
    pairs = zip(one.margins[:upto], other.margins[:upto], strict=False)
    return [abs(a - b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


@dataclass(frozen=True)
class Noise:
    """How far the base is from itself."""

    largest: float
    mean: float  # of the item in which it is the largest
    positions: int  # at which it was measured; 0: assumed from the data type
    flips: int  # items in which the base chose another token when run again
    unusable: int  # items whose repeat is missing, failed, or has logprobs that are no numbers
    margin: float = math.inf  # the largest difference of two margins

    @property
    def limit(self) -> float:
        return FACTOR * self.largest

    @property
    def mean_limit(self) -> float:
        return FACTOR * self.mean

    @property
    def margin_limit(self) -> float:
        return FACTOR * self.margin

    @property
    def excessive(self) -> bool:
        return self.largest > CEILING


def noise(
    base: Mapping[str, Output],
    again: Mapping[str, Output],
    dtype: str,
    alike: bool = False,
    truth: Mapping[str, Output] | None = None,
    exact: bool = False,
) -> Noise:
    """Measured where base and repeat have the same tokens so far.

    Where the base flips by itself, both tokens moved, by half of the margin at least. A model of
    experts moves in steps: rounding picks another expert once in hundreds of tokens, too seldom for
    a repeat of a few. How far the base is from the same model in float32 (`truth`) shows it. A base
    that is that model itself (`exact`) shows nothing: what rounds may be as far from it as a base
    that is trusted.
    """
    if dtype not in EPSILON:
        raise UnfixError(f"no data type {dtype}: one of {', '.join(EPSILON)}")
    apart: list[float] = []
    means: list[float] = []
    margins: list[float] = []
    flipped: list[float] = []
    flips = unusable = 0
    for item, first in base.items():
        second = again.get(item)
        if second is None or any(one.error or one.broken is not None for one in (first, second)):
            unusable += 1
            continue
        at = parting(first.tokens, second.tokens)
        here = _apart(first, second, at)
        apart += here
        margins += _margins_apart(first, second, at)
        means += [sum(here) / len(here)] if here else []
        if at is not None:
            flips += 1
            flipped.append((first.surely(at) + second.surely(at)) / 2)
    least = EPSILON[dtype]
    largest = max([least, *apart, *flipped])
    assumed = MARGIN[dtype] / (ALIKE if alike and margins else 1)
    margin = max([assumed, *margins])
    if truth and not alike:
        margin = max(margin, min(TRUSTED * assumed, _from_truth(base, truth)))
    if exact and dtype != "float32":
        margin = max(margin, TRUSTED * MARGIN[dtype] / FACTOR)
    return Noise(largest, max([least, *means]), len(apart), flips, unusable, margin)


def _from_truth(base: Mapping[str, Output], truth: Mapping[str, Output]) -> float:
    """The largest difference of two margins from the same model without rounding."""
    apart: list[float] = []
    for item in base.keys() & truth.keys():
        one, true = base[item], truth[item]
        if not (one.error or true.error):
            apart += _margins_apart(one, true, parting(one.tokens, true.tokens))
    return max(apart, default=0.0)


@dataclass(frozen=True)
class Divergence:
    """One item: where the two part, how far they were apart until then, and what that is."""

    verdict: Verdict
    why: str = ""
    position: int | None = None
    largest: float | None = None  # None: without logprobs
    mean: float | None = None
    margin: float | None = None  # the largest difference of two margins


def compare(base: Output, again: Output | None, candidate: Output, floor: Noise) -> Divergence:
    """One item that both sides answered."""
    for side, output in (("base", base), ("candidate", candidate)):
        if output.broken is not None:
            why = f"at {output.broken} the {side}'s logprob is no number"
            return Divergence(Verdict.DIFFERS, why, output.broken)
    at = parting(base.tokens, candidate.tokens)
    apart = _apart(base, candidate, at)
    largest = max(apart, default=None)
    mean = sum(apart) / len(apart) if apart else None
    if floor.excessive:
        why = f"the base is {floor.largest:.3g} from itself"
        return Divergence(Verdict.CANNOT_TELL, why, at, largest, mean)
    verdict, why = Verdict.EQUAL, "" if apart or not base.tokens else "by its tokens alone"
    if at is not None:
        verdict, why = _token(base, again, candidate, at, floor)
    if verdict is not Verdict.DIFFERS and largest is not None and mean is not None:
        if largest > floor.limit:
            where = apart.index(largest)
            verdict, why = Verdict.DRIFTS, f"at {where} by {largest:.3g}, noise {floor.largest:.3g}"
        elif mean > floor.mean_limit:
            verdict, why = Verdict.DRIFTS, f"by {mean:.3g} on average, noise {floor.mean:.3g}"
    margins = _margins_apart(base, candidate, at)
    farthest = max(margins, default=0.0)
    if verdict in (Verdict.EQUAL, Verdict.NEAR_TIE) and farthest > floor.margin_limit:
        where = margins.index(farthest)
        why = f"at {where} its lead over the runner-up by {farthest:.3g}, noise {floor.margin:.3g}"
        verdict = Verdict.DRIFTS
    return Divergence(verdict, why, at, largest, mean, farthest if margins else None)


def _token(
    base: Output, again: Output | None, candidate: Output, at: int, floor: Noise
) -> tuple[Verdict, str]:
    """What a token that differs means. To flip, two tokens move by both margins together."""
    sure, other = base.surely(at), candidate.surely(at)
    if sure > floor.limit:
        return Verdict.DIFFERS, f"at {at}, where the base was sure by {sure:.3g}"
    if sure + other > FACTOR * floor.limit:
        return Verdict.DIFFERS, f"at {at}, where the candidate was sure by {other:.3g}"
    mine, others = base.logprob(at), candidate.logprob(at)
    if mine is not None and others is not None and abs(mine - others) > FACTOR * floor.limit:
        return Verdict.DIFFERS, f"at {at} for a token that was not near: {mine:.3g}, {others:.3g}"
    if base.margin(at) is not None:
        return Verdict.NEAR_TIE, f"at {at}, where the base's margin was {sure:.3g}"
    if again is not None and not again.error and parting(base.tokens, again.tokens) == at:
        ends = slice(at, at + 1)
        if again.tokens[ends] == candidate.tokens[ends]:
            return Verdict.NEAR_TIE, f"at {at}, where the base itself chose the same when run again"
    return Verdict.CANNOT_TELL, f"at {at}, where the base's margin is not known"


@dataclass(frozen=True)
class Comparison:
    """All items. What was not answered is named, and then nothing is called equal."""

    verdict: Verdict
    noise: Noise
    items: dict[str, Divergence]  # that both sides answered
    missing: dict[str, str]  # by item: the side that does not have it
    errors: dict[str, str]  # by item: the side, and what it said

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(one.verdict for one in self.items.values())

    def __str__(self) -> str:
        counts = self.counts
        told = [f"{counts[verdict]} {verdict}" for verdict in WORST if counts[verdict]]
        told += [f"{len(self.missing)} missing"] if self.missing else []
        told += [f"{len(self.errors)} unanswered"] if self.errors else []
        said = f"{self.verdict}: {', '.join(told)}"
        worst = [item for item, one in self.items.items() if one.verdict is self.verdict]
        if worst and self.items[worst[0]].why:
            said += f" (first {worst[0]}: {self.items[worst[0]].why})"
        return said


def divergence(
    base: Mapping[str, Output],
    again: Mapping[str, Output],
    candidate: Mapping[str, Output],
    *,
    dtype: str = "bfloat16",
    alike: bool = False,
    truth: Mapping[str, Output] | None = None,
    exact: bool = False,
) -> Comparison:
    """The base, the base run again, and what must not differ from it; each by item.

    `alike`: both are one configuration, and only a toggle is between them. What sums in another
    order are worth then need not be assumed: the repeat has it. `truth`: the same model in float32,
    `exact`: the base is that.
    """
    every = sorted(base.keys() | candidate.keys())
    if not every:
        raise UnfixError("the task has no items")
    floor = noise(base, again, dtype, alike, truth, exact)
    items: dict[str, Divergence] = {}
    missing: dict[str, str] = {}
    errors: dict[str, str] = {}
    for item in every:
        sides = {"base": base.get(item), "candidate": candidate.get(item)}
        first, second = sides.values()
        if first is None or second is None:
            missing[item] = "base" if first is None else "candidate"
        said = [f"{side}: {one.error}" for side, one in sides.items() if one and one.error]
        if said:
            errors[item] = "; ".join(said)
        elif first is not None and second is not None:
            items[item] = compare(first, again.get(item), second, floor)
    verdicts = [one.verdict for one in items.values()]
    if missing or errors:
        verdicts.append(Verdict.CANNOT_TELL)
    return Comparison(max(verdicts, key=WORST.index), floor, items, missing, errors)
