"""Token-by-token comparison: a cache, draft model or kernel must not change an answer.

Two servers that sum in another order give logprobs that differ in the last digits, and where two
tokens are nearly tied the other one wins. How near is measured: the base runs twice, and its
distance from itself is the noise. A token that differs counts as a near-tie only if its margin and
logprob on both sides are within that noise. With a noise of 0.01 (limit 0.02), a flip at a margin
of 0.015 is a near-tie; a flip where the base led by 3 differs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict

# The least noise. In 16 bits it is half a rounding step of a logit between 16 and 32; in 32 bits a
# step is 2e-6, and sums in another order differ by more.
MIN_LOGPROB_NOISE = {"float32": 1e-4, "float16": 2.0**-7, "bfloat16": 2.0**-4}
# The likelihood of a near-certain token hardly changes, but its margin over the runner-up does, as
# two logits go through all layers. Measured between plain transformers in float32 and served models
# of a few layers: 0.023 and 0.086 in float16.
MIN_MARGIN_NOISE = {"float32": 4e-3, "float16": 2.0**-4, "bfloat16": 0.5}
# Two servers of one configuration with a measured repeat need so much less assumed noise.
SAME_CONFIGURATION_DIVISOR = 8
# A base farther from float32 than this many times the least margin may be wrong itself.
TRUSTED_MARGIN_FACTOR = 4.0
# The limit of logprob differences and of near-tie margins, in multiples of the noise.
NOISE_FACTOR = 2.0
MAX_NOISE = 0.5  # a base farther from itself than this is no reference


VERDICT_SEVERITY = (
    Verdict.EQUAL,
    Verdict.NEAR_TIE,
    Verdict.CANNOT_TELL,
    Verdict.DRIFTS,
    Verdict.DIFFERS,
)  # the last is the worst


@dataclass(frozen=True)
class TokenOutput:
    """One answer. A margin is the logprob of the chosen token minus that of the best other."""

    tokens: Sequence[object]
    logprobs: Sequence[float] | None = None
    margins: Sequence[float] | None = None
    error: str = ""  # the server's error, in place of an answer

    def __post_init__(self) -> None:
        for name in ("logprobs", "margins"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.tokens):
                raise UnfixError(f"{len(self.tokens)} tokens with {len(values)} {name}")

    def get_logprob(self, position: int) -> float | None:
        return _get_value(self.logprobs, position)

    def get_margin(self, position: int) -> float | None:
        """Return the known margin, without its sign."""
        known = _get_value(self.margins, position)
        return None if known is None else abs(known)

    def get_least_margin(self, position: int) -> float:
        """Return a lower bound of the margin: other tokens share the rest of the probability."""
        known = self.get_margin(position)
        if known is not None:
            return known
        logprob = self.get_logprob(position)
        if logprob is None or logprob < math.log(0.5):
            return 0.0
        rest = -math.expm1(logprob)
        return math.inf if rest <= 0 else logprob - math.log(rest)

    @property
    def first_invalid(self) -> int | None:
        """The first position with a logprob or margin that is not a number."""
        bad = [at for at, one in enumerate(self.logprobs or ()) if not math.isfinite(one)]
        bad += [at for at, one in enumerate(self.margins or ()) if math.isnan(one)]
        return min(bad, default=None)  # a margin is infinite where one token alone was allowed


def _get_value(values: Sequence[float] | None, position: int) -> float | None:
    return values[position] if values is not None and position < len(values) else None


def find_first_difference(first: Sequence[object], second: Sequence[object]) -> int | None:
    """Find the first position at which they differ; a shorter one differs at its end."""
    for at, (mine, others) in enumerate(zip(first, second, strict=False)):
        if mine != others:
            return at
    return None if len(first) == len(second) else min(len(first), len(second))


def _compute_logprob_distances(
    first: TokenOutput, second: TokenOutput, end: int | None
) -> list[float]:
    """Return the distances of the logprobs, where both chose the same tokens so far."""
    if first.logprobs is None or second.logprobs is None:
        return []
    pairs = zip(first.logprobs[:end], second.logprobs[:end], strict=False)
    return [abs(mine - others) for mine, others in pairs]


def _compute_margin_distances(
    first: TokenOutput, second: TokenOutput, end: int | None
) -> list[float]:
    """Return the distances of the finite margins, where both chose the same tokens so far."""
    if first.margins is None or second.margins is None:
        return []
    pairs = zip(first.margins[:end], second.margins[:end], strict=False)
    return [abs(a - b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


@dataclass(frozen=True)
class BaseNoise:
    """The distance of the base from its own repeat."""

    largest: float
    mean: float  # the largest mean of an item
    positions: int  # measured positions; 0: assumed from the data type
    flips: int  # items whose repeat has another token
    unusable_repeats: int  # items whose repeat is missing, failed, or has invalid logprobs
    margin: float = math.inf  # the largest difference of two margins

    @property
    def limit(self) -> float:
        return NOISE_FACTOR * self.largest

    @property
    def mean_limit(self) -> float:
        return NOISE_FACTOR * self.mean

    @property
    def margin_limit(self) -> float:
        return NOISE_FACTOR * self.margin

    @property
    def is_excessive(self) -> bool:
        return self.largest > MAX_NOISE


def measure_noise(
    base: Mapping[str, TokenOutput],
    repeat: Mapping[str, TokenOutput],
    dtype: str,
    same_but_toggles: bool = False,
    float32_reference: Mapping[str, TokenOutput] | None = None,
    base_is_reference: bool = False,
) -> BaseNoise:
    """Measure the noise where base and repeat have the same tokens so far.

    Where the base flips by itself, both tokens moved, by half of the margin at least. A mixture of
    experts moves in steps: rounding picks another expert once in hundreds of tokens, too seldom for
    a short repeat. The distance of the base from the same model in float32 shows such steps. If the
    base is that reference itself, a candidate that rounds may be as far from it as a trusted base.
    """
    if dtype not in MIN_LOGPROB_NOISE:
        raise UnfixError(f"no data type {dtype}: one of {', '.join(MIN_LOGPROB_NOISE)}")
    apart: list[float] = []
    means: list[float] = []
    margins: list[float] = []
    flipped: list[float] = []
    flips = unusable = 0
    for item, first in base.items():
        second = repeat.get(item)
        if second is None or any(
            one.error or one.first_invalid is not None for one in (first, second)
        ):
            unusable += 1
            continue
        at = find_first_difference(first.tokens, second.tokens)
        distances = _compute_logprob_distances(first, second, at)
        apart += distances
        margins += _compute_margin_distances(first, second, at)
        means += [sum(distances) / len(distances)] if distances else []
        if at is not None:
            flips += 1
            flipped.append((first.get_least_margin(at) + second.get_least_margin(at)) / 2)
    least = MIN_LOGPROB_NOISE[dtype]
    largest = max([least, *apart, *flipped])
    assumed = MIN_MARGIN_NOISE[dtype] / (
        SAME_CONFIGURATION_DIVISOR if same_but_toggles and margins else 1
    )
    margin = max([assumed, *margins])
    if float32_reference and not same_but_toggles:
        margin = max(
            margin,
            min(
                TRUSTED_MARGIN_FACTOR * assumed,
                _measure_reference_distance(base, float32_reference),
            ),
        )
    if base_is_reference and dtype != "float32":
        margin = max(margin, TRUSTED_MARGIN_FACTOR * MIN_MARGIN_NOISE[dtype] / NOISE_FACTOR)
    return BaseNoise(largest, max([least, *means]), len(apart), flips, unusable, margin)


def _measure_reference_distance(
    base: Mapping[str, TokenOutput], float32_reference: Mapping[str, TokenOutput]
) -> float:
    """Return the largest distance of two margins, to the same model in float32."""
    apart: list[float] = []
    for item in base.keys() & float32_reference.keys():
        one, reference = base[item], float32_reference[item]
        if not (one.error or reference.error):
            apart += _compute_margin_distances(
                one, reference, find_first_difference(one.tokens, reference.tokens)
            )
    return max(apart, default=0.0)


@dataclass(frozen=True)
class ItemDivergence:
    """One item: the position where the two differ, the distances before it, and the verdict."""

    verdict: Verdict
    reason: str = ""
    position: int | None = None
    largest: float | None = None  # None: without logprobs
    mean: float | None = None
    margin: float | None = None  # the largest difference of two margins


def compare_item(
    base: TokenOutput, repeat: TokenOutput | None, candidate: TokenOutput, base_noise: BaseNoise
) -> ItemDivergence:
    """Compare one item that both sides answered."""
    for side, output in (("base", base), ("candidate", candidate)):
        if output.first_invalid is not None:
            why = f"at {output.first_invalid} the {side}'s logprob is no number"
            return ItemDivergence(Verdict.DIFFERS, why, output.first_invalid)
    at = find_first_difference(base.tokens, candidate.tokens)
    apart = _compute_logprob_distances(base, candidate, at)
    largest = max(apart, default=None)
    mean = sum(apart) / len(apart) if apart else None
    if base_noise.is_excessive:
        why = f"the base is {base_noise.largest:.3g} from itself"
        return ItemDivergence(Verdict.CANNOT_TELL, why, at, largest, mean)
    verdict, why = (
        Verdict.EQUAL,
        "" if apart or not base.tokens else "by its tokens alone",
    )
    if at is not None:
        verdict, why = _judge_token(base, repeat, candidate, at, base_noise)
    if verdict is not Verdict.DIFFERS and largest is not None and mean is not None:
        if largest > base_noise.limit:
            where = apart.index(largest)
            verdict, why = (
                Verdict.DRIFTS,
                f"at {where} by {largest:.3g}, noise {base_noise.largest:.3g}",
            )
        elif mean > base_noise.mean_limit:
            verdict, why = (
                Verdict.DRIFTS,
                f"by {mean:.3g} on average, noise {base_noise.mean:.3g}",
            )
    margins = _compute_margin_distances(base, candidate, at)
    farthest = max(margins, default=0.0)
    if verdict in (Verdict.EQUAL, Verdict.NEAR_TIE) and farthest > base_noise.margin_limit:
        where = margins.index(farthest)
        why = f"at {where} its lead over the runner-up by {farthest:.3g}"
        why += f", noise {base_noise.margin:.3g}"
        verdict = Verdict.DRIFTS
    return ItemDivergence(verdict, why, at, largest, mean, farthest if margins else None)


def _judge_token(
    base: TokenOutput,
    repeat: TokenOutput | None,
    candidate: TokenOutput,
    position: int,
    base_noise: BaseNoise,
) -> tuple[Verdict, str]:
    """Judge a token that differs: to flip, two tokens move by both margins together."""
    sure, other = base.get_least_margin(position), candidate.get_least_margin(position)
    if sure > base_noise.limit:
        return Verdict.DIFFERS, f"at {position}, where the base was sure by {sure:.3g}"
    if sure + other > NOISE_FACTOR * base_noise.limit:
        return (
            Verdict.DIFFERS,
            f"at {position}, where the candidate was sure by {other:.3g}",
        )
    mine, others = base.get_logprob(position), candidate.get_logprob(position)
    if (
        mine is not None
        and others is not None
        and abs(mine - others) > NOISE_FACTOR * base_noise.limit
    ):
        return (
            Verdict.DIFFERS,
            f"at {position} for a token that was not near: {mine:.3g}, {others:.3g}",
        )
    if base.get_margin(position) is not None:
        return Verdict.NEAR_TIE, f"at {position}, where the base's margin was {sure:.3g}"
    if (
        repeat is not None
        and not repeat.error
        and find_first_difference(base.tokens, repeat.tokens) == position
    ):
        ends = slice(position, position + 1)
        if repeat.tokens[ends] == candidate.tokens[ends]:
            return (
                Verdict.NEAR_TIE,
                f"at {position}, where the base itself chose the same when run again",
            )
    return Verdict.CANNOT_TELL, f"at {position}, where the base's margin is not known"


@dataclass(frozen=True)
class TokenComparison:
    """The comparison of all items; with a missing or unanswered item it is never equal."""

    verdict: Verdict
    noise: BaseNoise
    items: dict[str, ItemDivergence]  # answered by both sides
    missing: dict[str, str]  # by item: the side without it
    errors: dict[str, str]  # by item: the side and its error

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(one.verdict for one in self.items.values())

    def __str__(self) -> str:
        counts = self.counts
        parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICT_SEVERITY if counts[verdict]]
        parts += [f"{len(self.missing)} missing"] if self.missing else []
        parts += [f"{len(self.errors)} unanswered"] if self.errors else []
        text = f"{self.verdict}: {', '.join(parts)}"
        worst = [item for item, one in self.items.items() if one.verdict is self.verdict]
        if worst and self.items[worst[0]].reason:
            text += f" (first {worst[0]}: {self.items[worst[0]].reason})"
        return text


def compare_outputs(
    base: Mapping[str, TokenOutput],
    repeat: Mapping[str, TokenOutput],
    candidate: Mapping[str, TokenOutput],
    *,
    dtype: str = "bfloat16",
    same_but_toggles: bool = False,
    float32_reference: Mapping[str, TokenOutput] | None = None,
    base_is_reference: bool = False,
) -> TokenComparison:
    """Compare a candidate with the base by the noise of the base's repeat; all by item.

    `same_but_toggles`: both are one configuration apart from toggles, so the repeat alone measures
    the noise of sums in another order. `float32_reference`: the same model in float32;
    `base_is_reference`: the base is that.
    """
    every = sorted(base.keys() | candidate.keys())
    if not every:
        raise UnfixError("the task has no items")
    floor = measure_noise(
        base, repeat, dtype, same_but_toggles, float32_reference, base_is_reference
    )
    items: dict[str, ItemDivergence] = {}
    missing: dict[str, str] = {}
    errors: dict[str, str] = {}
    for item in every:
        sides = {"base": base.get(item), "candidate": candidate.get(item)}
        first, second = sides.values()
        if first is None or second is None:
            missing[item] = "base" if first is None else "candidate"
        failures = [f"{side}: {one.error}" for side, one in sides.items() if one and one.error]
        if failures:
            errors[item] = "; ".join(failures)
        elif first is not None and second is not None:
            items[item] = compare_item(first, repeat.get(item), second, floor)
    verdicts = [one.verdict for one in items.values()]
    if missing or errors:
        verdicts.append(Verdict.CANNOT_TELL)
    return TokenComparison(max(verdicts, key=VERDICT_SEVERITY.index), floor, items, missing, errors)
