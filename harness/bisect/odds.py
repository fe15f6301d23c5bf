"""The culprit of a symptom that shows now and then: every run is evidence, none decides alone.

Each small set of toggles is a hypothesis, 'none of them' is one more. A run is likely or unlikely
under each; the next run is the one that is expected to teach the most; the search ends when one
hypothesis has the odds that were asked for. What it found is then tested apart from all that: runs
with the culprits alone against runs with all but them, by a test that may look at each result as it
comes and still errs no more often than it says.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from harness.bisect.questions import NOTHING, Found, Question, Search, Toggles, Universe

LARGEST = 3  # toggles that act together
HYPOTHESES = 20_000  # at most; more toggles are searched for smaller sets
PRIOR_NONE = 0.1
PRIOR = {1: 0.74, 2: 0.06, 3: 0.02}  # by how many act together
PRIOR_ANY = {2: 0.06, 3: 0.02}  # by how many act alone
CLEAN = 0.9  # the prior odds that without its cause the event never happens
NOISE = (1.0, 9.0)  # else how often, as a Beta
PARTS = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)  # of the suspects, in one run
FEW = 100  # hypotheses that choose the next run
WORTH = 1e-4  # a hypothesis less likely than this does not choose the next run


@dataclass
class Count:
    runs: int = 0
    events: int = 0

    def add(self, event: bool) -> None:
        self.runs += 1
        self.events += event


@dataclass(frozen=True)
class Hypothesis:
    toggles: Toggles  # none: nothing here has to do with it
    mask: int
    log_prior: float
    alone: bool = False  # each by itself, and not only together

    def within(self, mask: int) -> bool:
        """Whether a run with these toggles in is one in which it acts."""
        if self.alone:
            return bool(mask & self.mask)
        return bool(self.mask) and mask & self.mask == self.mask

    @property
    def sets(self) -> list[Toggles]:
        if self.alone:
            return [frozenset({name}) for name in sorted(self.toggles)]
        return [self.toggles] if self.toggles else []


class Odds:
    """One search. The event is that the command fails; `causes` tells whether toggles bring it
    about (a fix is out) or keep it away (a fix is in)."""

    def __init__(
        self,
        universe: Universe,
        repeat: int,
        confidence: float,
        *,
        causes: bool = True,
        jobs: int = 1,
        every: bool = False,
    ) -> None:
        self.universe = universe
        self.repeat = repeat
        self.causes = causes
        self.jobs = jobs
        self.every = every
        self.alpha = (1 - confidence) / 2  # half for the search, half for the proof
        # A symptom that shows less often than this may not show in so many runs.
        self.least = 1 - self.alpha ** (1 / repeat)
        self.log: list[tuple[int, bool]] = []  # each run's toggles, and whether it happened
        self.counts: dict[int, Count] = {}  # the same by what was in
        self.bit = {name: 1 << i for i, name in enumerate(universe.toggles)}
        self.silent: Counter[Toggles] = Counter()  # runs that said nothing

    def go(self) -> Search[Found]:
        found = Found(sure=1.0, least=self.least)
        suspects = frozenset(self.universe.toggles)
        while suspects:
            likeliest, sure = yield from self._likeliest(suspects)
            found.sure = (found.sure or 0.0) - (1 - sure)
            if sure < 1 - self.alpha:
                if not found.sets:
                    found.cannot_tell = self._unsure(likeliest, sure)
                break
            if not likeliest.sets:
                break
            wanted = likeliest.sets if self.every else likeliest.sets[:1]
            for toggles in wanted:
                problem, level = yield from self._proof(toggles, likeliest.toggles)
                if problem:
                    found.cannot_tell = problem
                    return found
                found.sure -= level
            found.sets += wanted
            found.rest_shows = len(wanted) < len(likeliest.sets)
            if not self.every:
                break
            suspects -= likeliest.toggles
            self._forget_all_with(likeliest.toggles)
        return found

    def _unsure(self, likeliest: Hypothesis, sure: float) -> str:
        joined = " or " if likeliest.alone else " + "
        what = joined.join(self.universe.ordered(likeliest.toggles)) or "none of them"
        told = self.silent.total()
        silent = f", and {told} runs said nothing" if told else ""
        return (
            f"after {self._runs()} runs the likeliest is {what}, at {sure:.1%}{silent}: "
            "a larger --repeat goes on"
        )

    def _runs(self) -> int:
        return len(self.log)

    def _forget_all_with(self, toggles: Toggles) -> None:
        """What was seen with these in says nothing about the others."""
        mask = self._mask(toggles)
        self.log = [entry for entry in self.log if not entry[0] & mask]
        self.counts = {s: count for s, count in self.counts.items() if not s & mask}

    # Searching

    def _hypotheses(self, suspects: Toggles) -> list[Hypothesis]:
        names = self.universe.ordered(suspects)
        found = [Hypothesis(NOTHING, 0, math.log(PRIOR_NONE))]
        for size in range(1, LARGEST + 1):
            count = math.comb(len(names), size)
            if not count or len(found) + 2 * count > HYPOTHESES:
                break
            together = math.log(PRIOR[size] / count)
            for chosen in itertools.combinations(names, size):
                mask = sum(self.bit[name] for name in chosen)
                toggles = frozenset(chosen)
                if self.universe.fits(toggles):
                    found.append(Hypothesis(toggles, mask, together))
                if size > 1:
                    alone = math.log(PRIOR_ANY[size] / count)
                    found.append(Hypothesis(toggles, mask, alone, alone=True))
        return found

    def _likeliest(self, suspects: Toggles) -> Search[tuple[Hypothesis, float]]:
        """The hypothesis that the runs leave, and its odds."""
        hypotheses = self._hypotheses(suspects)
        steps = math.ceil(math.log2(len(suspects) + 1)) + 1
        ends = self._runs() + self.silent.total() + self.repeat * steps
        inside = [(0, 0)] * len(hypotheses)  # runs in which each acts, and events of these
        total, met = Count(), 0
        acting: dict[int, list[int]] = {}  # by what was in a run: those that act in it
        while True:
            for mask, event in self.log[met:]:
                total.add(event)
                if mask not in acting:
                    acting[mask] = [i for i, one in enumerate(hypotheses) if one.within(mask)]
                for place in acting[mask]:
                    runs, events = inside[place]
                    inside[place] = runs + 1, events + event
            met = len(self.log)
            weights = self._weights(hypotheses, inside, total)
            best = max(range(len(weights)), key=weights.__getitem__)
            over = self._runs() + self.silent.total() >= ends
            if weights[best] >= 1 - self.alpha or over:
                return hypotheses[best], weights[best]
            batch = self._next(hypotheses, weights, suspects)
            if not batch:
                return hypotheses[best], weights[best]
            yield from self._run(batch)

    def _run(self, batch: list[Toggles], why: str = "search") -> Search[list[bool | None]]:
        answers = yield [Question(toggles, why) for toggles in batch]
        happened: list[bool | None] = []
        for toggles, answer in zip(batch, answers, strict=True):
            if answer.shows is None:
                self.silent[toggles] += 1
                happened.append(None)
                continue
            event = answer.shows == self.causes
            mask = self._mask(toggles)
            self.log.append((mask, event))
            self.counts.setdefault(mask, Count()).add(event)
            happened.append(event)
        return happened

    def _weights(
        self, hypotheses: list[Hypothesis], inside: list[tuple[int, int]], total: Count
    ) -> list[float]:
        """The odds of each, by Bayes' rule."""
        likely = {counts: self._likelihood(*counts, total) for counts in set(inside)}
        logs = [
            hypothesis.log_prior + likely[counts]
            for hypothesis, counts in zip(hypotheses, inside, strict=True)
        ]
        highest = max(logs)
        odds = [math.exp(log - highest) for log in logs]
        every = sum(odds)
        return [value / every for value in odds]

    def _likelihood(self, runs: int, events: int, total: Count) -> float:
        """Of the runs in which a hypothesis acts, and of the others."""
        acts = runs, events
        not_acts = total.runs - runs, total.events - events
        often, seldom = (acts, not_acts) if self.causes else (not_acts, acts)
        return likelihood(*often, *seldom, self.least)

    def _mask(self, toggles: Toggles) -> int:
        return sum(self.bit[name] for name in toggles)

    def _next(
        self, hypotheses: list[Hypothesis], weights: list[float], suspects: Toggles
    ) -> list[Toggles]:
        """The sets whose runs are expected to teach the most."""
        likely = sorted(
            (i for i, weight in enumerate(weights) if weight > WORTH), key=lambda i: -weights[i]
        )[:FEW]
        blame = dict.fromkeys(suspects, 0.0)
        for i in likely:
            for name in hypotheses[i].toggles:
                blame[name] += weights[i]
        order = sorted(suspects, key=lambda name: (-blame[name], self.universe.toggles.index(name)))
        options: dict[Toggles, None] = {NOTHING: None}
        lengths = {max(1, round(len(order) * part)) for part in PARTS} | {1, 2, 3}
        for length in sorted(min(one, len(order)) for one in lengths):
            for fitting in self.universe.largest(frozenset(order[:length])):
                options[fitting] = None
        for i in likely[:4]:
            for toggles in hypotheses[i].sets:
                options[toggles] = None
            for fitting in self.universe.largest(suspects - hypotheses[i].toggles):
                options[fitting] = None
        with_rates = [(hypotheses[i], weights[i], self._rates(hypotheses[i])) for i in likely]
        scored = []
        for place, toggles in enumerate(options):
            tried = self.counts.get(self._mask(toggles), Count()).runs + self.silent[toggles]
            if tried < self.repeat:
                scored.append((-self._worth(toggles, with_rates), tried, place, toggles))
        scored.sort(key=lambda entry: entry[:3])
        return [toggles for *_, toggles in scored[: self.jobs]]

    def _rates(self, hypothesis: Hypothesis) -> tuple[float, float]:
        """How often the event is expected with the hypothesis' toggles in, and without."""
        runs = events = other_runs = other_events = 0
        for mask, count in self.counts.items():
            if hypothesis.within(mask) == self.causes:
                runs, events = runs + count.runs, events + count.events
            else:
                other_runs, other_events = other_runs + count.runs, other_events + count.events
        often = (events + 1) / (runs + 2)
        seldom = (other_events + 0.05) / (other_runs + 1)
        return (often, seldom) if self.causes else (seldom, often)

    def _worth(
        self,
        toggles: Toggles,
        hypotheses: list[tuple[Hypothesis, float, tuple[float, float]]],
    ) -> float:
        """The information that a run with these toggles is expected to give."""
        mask = self._mask(toggles)
        expected = spread = total = 0.0
        for hypothesis, weight, (inside, outside) in hypotheses:
            rate = inside if hypothesis.within(mask) else outside
            expected += weight * rate
            spread += weight * entropy(rate)
            total += weight
        return entropy(expected / total) - spread / total

    # Proof

    def _proof(self, toggles: Toggles, culprits: Toggles) -> Search[tuple[str, float]]:
        """Runs with a set alone against runs with all but the culprits, both afresh."""
        rest = self.universe.largest(frozenset(self.universe.toggles) - culprits)[0]
        test = TwoRates(self.alpha)
        for _ in range(self.repeat):
            alone, others = yield from self._run([toggles, rest], "proof")
            if alone is None or others is None:
                continue
            test.add(alone, others) if self.causes else test.add(others, alone)
            if test.decided:
                return "", 1 / test.value
        names = " + ".join(self.universe.ordered(toggles))
        what = "happens" if self.causes else "stays away"
        return (
            f"the likeliest is {names}, but run afresh it {what} {test.told} "
            f"with and without: not enough to be sure after {self.repeat} runs of each",
            0.0,
        )


@lru_cache(maxsize=100_000)
def likelihood(often_runs: int, often_events: int, runs: int, events: int, least: float) -> float:
    """The log of how likely such counts are where the event happens often, and where seldom.

    'Often' is any rate above the least one that the number of runs allows to see.
    """
    if often_runs and events * often_runs >= often_events * runs and events:
        # No more often here than elsewhere: as likely as if it made no difference.
        return same(often_runs + runs, often_events + events)
    noisy = math.log(1 - CLEAN) + _beta(NOISE[0] + events, NOISE[1] + runs - events)
    noisy -= _beta(*NOISE)
    often = _beta(1 + often_events, 1 + often_runs - often_events)
    if not often_events:
        often += often_runs * math.log(1 - least)
    if events:
        return often + noisy
    return often + math.log(CLEAN + math.exp(noisy))


@lru_cache(maxsize=100_000)
def same(runs: int, events: int) -> float:
    """The log of how likely such counts are if nothing makes a difference."""
    return _beta(1 + events, 1 + runs - events)


def _beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def entropy(rate: float) -> float:
    if rate <= 0 or rate >= 1:
        return 0.0
    return -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)


class TwoRates:
    """Whether the first of two events happens more often, looked at after each pair of runs.

    The value is a product of bets against 'no more often': if that were true it would exceed 1/a
    with a probability of at most a, whenever one looks and whatever the rates are.
    """

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self.value = 1.0
        self.first = Count()
        self.second = Count()

    def add(self, first: bool, second: bool) -> None:
        # What the pairs so far make one expect, before this one is looked at.
        a = (self.first.events + 0.5) / (self.first.runs + 1)
        b = (self.second.events + 0.18) / (self.second.runs + 1)
        if a > b:
            both = (a + b) / 2
            under = (a if first else 1 - a) * (b if second else 1 - b)
            null = (both if first else 1 - both) * (both if second else 1 - both)
            self.value *= under / null
        self.first.add(first)
        self.second.add(second)

    @property
    def decided(self) -> bool:
        return self.value >= 1 / self.alpha

    @property
    def told(self) -> str:
        first, second = self.first, self.second
        return f"{first.events}/{first.runs} and {second.events}/{second.runs} times"
