"""The culprits of a flaky symptom: every run is evidence, and none decides alone.

Each small set of toggles is a hypothesis, and `none of them` is one more. Bayes' rule gives each a
probability after every run; the next run is the one with the largest expected information; the
search ends when one hypothesis reaches the confidence. A separate proof then compares fresh runs of
the culprits alone with runs of all toggles but them, by a sequential test whose error rate holds
however often its value is read.

Example: 20 toggles, one of which makes 3 runs in 10 fail. A run with ten of them that fails leaves
those ten as suspects; a run that passes makes each of its ten a little less likely. After about 130
runs one toggle has a probability above 99.5 %, and a dozen pairs of fresh runs prove it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from harness.runs.bisect.event_rates import (
    EventCount,
    SequentialRateTest,
    compute_entropy,
    compute_log_likelihood,
)
from harness.runs.bisect.search_questions import (
    NO_TOGGLES,
    QuestionGenerator,
    SearchQuestion,
    SearchResult,
    ToggleIds,
    ToggleUniverse,
)

MAX_CULPRITS = 3  # toggles that act together
MAX_HYPOTHESES = 20_000  # more toggles are searched for smaller sets
PRIOR_NONE = 0.1
PRIOR_TOGETHER = {1: 0.74, 2: 0.06, 3: 0.02}  # keys: sizes of sets that act together
PRIOR_ALONE = {2: 0.06, 3: 0.02}  # keys: numbers of toggles that act alone
SUSPECT_FRACTIONS = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)  # of the suspects, in one run
MAX_DECIDING_HYPOTHESES = 100  # hypotheses that choose the next run
MIN_DECIDING_WEIGHT = 1e-4  # a hypothesis less likely than this does not choose the next run


@dataclass(frozen=True)
class CulpritHypothesis:
    toggles: ToggleIds  # empty: no toggle is the cause
    mask: int
    log_prior: float
    each_acts_alone: bool = False  # True: each by itself, not only together

    def is_active_in(self, mask: int) -> bool:
        """Return whether the hypothesis predicts an effect in a run with these toggles."""
        common = mask & self.mask
        return bool(common) and (self.each_acts_alone or common == self.mask)

    @property
    def culprit_sets(self) -> list[ToggleIds]:
        if self.each_acts_alone:
            return [frozenset({name}) for name in sorted(self.toggles)]
        return [self.toggles] if self.toggles else []


class PredictedOutcomes(NamedTuple):
    """A hypothesis, and the rate and entropy of the event where it acts and where not; all of these
    are multiplied by its probability."""

    mask: int
    each_acts_alone: bool
    inside: tuple[float, float]
    outside: tuple[float, float]


class BayesianSearch:
    """One search. The event is a failing run; `toggles_cause_event` is True where toggles bring it
    about (a fix is reverted) and False where they prevent it (a fix is applied)."""

    def __init__(
        self,
        universe: ToggleUniverse,
        repeat: int,
        confidence: float,
        *,
        toggles_cause_event: bool = True,
        jobs: int = 1,
        find_all: bool = False,
    ) -> None:
        self.universe = universe
        self.repeat = repeat
        self.toggles_cause_event = toggles_cause_event
        self.jobs = jobs
        self.find_all = find_all
        self.alpha = (1 - confidence) / 2  # half for the search, half for the proof
        # A symptom that shows less often than this may not show in so many runs.
        self.least_detectable_rate = 1 - self.alpha ** (1 / repeat)
        self.run_log: list[tuple[int, bool]] = []  # each run's toggles and event
        self.counts: dict[int, EventCount] = {}  # counts by toggles
        self.bit_of_toggle = {name: 1 << i for i, name in enumerate(universe.toggles)}
        self.inconclusive_runs: Counter[ToggleIds] = Counter()  # by toggles

    def search(self) -> QuestionGenerator[SearchResult]:
        found = SearchResult(confidence=1.0, least_detectable_rate=self.least_detectable_rate)
        suspects = frozenset(self.universe.toggles)
        while suspects:
            likeliest, sure = yield from self._find_likeliest(suspects)
            found.confidence = (found.confidence or 0.0) - (1 - sure)
            if sure < 1 - self.alpha:
                if not found.minimal_sets:
                    found.cannot_tell = self._describe_uncertainty(likeliest, sure)
                break
            if not likeliest.culprit_sets:
                break
            wanted = likeliest.culprit_sets if self.find_all else likeliest.culprit_sets[:1]
            for toggles in wanted:
                problem, level = yield from self._confirm_culprits(toggles, likeliest.toggles)
                if problem:
                    found.cannot_tell = problem
                    return found
                found.confidence -= level
            found.minimal_sets += wanted
            found.others_show_symptom = len(wanted) < len(likeliest.culprit_sets)
            if not self.find_all:
                break
            suspects -= likeliest.toggles
            self._forget_runs_with(likeliest.toggles)
        return found

    def _describe_uncertainty(self, likeliest: CulpritHypothesis, probability: float) -> str:
        joined = " or " if likeliest.each_acts_alone else " + "
        what = joined.join(self.universe.sort_toggles(likeliest.toggles)) or "none of them"
        inconclusive = self.inconclusive_runs.total()
        suffix = f", and {inconclusive} runs gave no answer" if inconclusive else ""
        return (
            f"after {len(self.run_log)} runs the likeliest is {what}, at {probability:.1%}"
            f"{suffix}: a larger --repeat goes on"
        )

    def _forget_runs_with(self, toggles: ToggleIds) -> None:
        """Drop the runs with these toggles: they are no evidence about the others."""
        mask = self._to_mask(toggles)
        self.run_log = [entry for entry in self.run_log if not entry[0] & mask]
        self.counts = {s: count for s, count in self.counts.items() if not s & mask}

    # Searching

    def _list_hypotheses(self, suspects: ToggleIds) -> list[CulpritHypothesis]:
        names = self.universe.sort_toggles(suspects)
        found = [CulpritHypothesis(NO_TOGGLES, 0, math.log(PRIOR_NONE))]
        for size in range(1, MAX_CULPRITS + 1):
            count = math.comb(len(names), size)
            if not count or len(found) + 2 * count > MAX_HYPOTHESES:
                break
            together = math.log(PRIOR_TOGETHER[size] / count)
            for chosen in itertools.combinations(names, size):
                mask = sum(self.bit_of_toggle[name] for name in chosen)
                toggles = frozenset(chosen)
                if self.universe.can_combine(toggles):
                    found.append(CulpritHypothesis(toggles, mask, together))
                if size > 1:
                    alone = math.log(PRIOR_ALONE[size] / count)
                    found.append(CulpritHypothesis(toggles, mask, alone, each_acts_alone=True))
        return found

    def _find_likeliest(
        self, suspects: ToggleIds
    ) -> QuestionGenerator[tuple[CulpritHypothesis, float]]:
        """Return the most probable hypothesis after enough runs, and its probability."""
        hypotheses = self._list_hypotheses(suspects)
        steps = math.ceil(math.log2(len(suspects) + 1)) + 1
        ends = len(self.run_log) + self.inconclusive_runs.total() + self.repeat * steps
        inside = [(0, 0)] * len(hypotheses)  # runs in which each acts, and events of these
        total, counted_runs = EventCount(), 0
        acting: dict[int, list[int]] = {}  # by a run's toggles: the active ones
        while True:
            for mask, event in self.run_log[counted_runs:]:
                total.add_run(event)
                if mask not in acting:
                    acting[mask] = [i for i, one in enumerate(hypotheses) if one.is_active_in(mask)]
                for place in acting[mask]:
                    runs, events = inside[place]
                    inside[place] = runs + 1, events + event
            counted_runs = len(self.run_log)
            weights = self._compute_weights(hypotheses, inside, total)
            best = max(range(len(weights)), key=weights.__getitem__)
            over = len(self.run_log) + self.inconclusive_runs.total() >= ends
            if weights[best] >= 1 - self.alpha or over:
                return hypotheses[best], weights[best]
            batch = self._choose_next_runs(hypotheses, weights, suspects, inside, total)
            if not batch:
                return hypotheses[best], weights[best]
            yield from self._run_batch(batch)

    def _run_batch(
        self, batch: list[ToggleIds], why: str = "search"
    ) -> QuestionGenerator[list[bool | None]]:
        answers = yield [SearchQuestion(toggles, why) for toggles in batch]
        happened: list[bool | None] = []
        for toggles, answer in zip(batch, answers, strict=True):
            if answer.shows_symptom is None:
                self.inconclusive_runs[toggles] += 1
                happened.append(None)
                continue
            event = answer.shows_symptom == self.toggles_cause_event
            mask = self._to_mask(toggles)
            self.run_log.append((mask, event))
            self.counts.setdefault(mask, EventCount()).add_run(event)
            happened.append(event)
        return happened

    def _compute_weights(
        self,
        hypotheses: list[CulpritHypothesis],
        active_counts: list[tuple[int, int]],
        total: EventCount,
    ) -> list[float]:
        """Return the probability of each hypothesis, by Bayes' rule."""
        likely = {counts: self._compute_likelihood(*counts, total) for counts in set(active_counts)}
        logs = [
            hypothesis.log_prior + likely[counts]
            for hypothesis, counts in zip(hypotheses, active_counts, strict=True)
        ]
        highest = max(logs)
        odds = [math.exp(log - highest) for log in logs]
        every = sum(odds)
        return [value / every for value in odds]

    def _compute_likelihood(self, runs: int, events: int, total: EventCount) -> float:
        """Return the log likelihood of the counts if a hypothesis acts in `runs` of the runs."""
        often, seldom = self._split_counts(runs, events, total)
        return compute_log_likelihood(*often, *seldom, self.least_detectable_rate)

    def _split_counts(
        self, runs: int, events: int, total: EventCount
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Split all runs and their events into those where a hypothesis expects the event, and the
        others, by the counts of the runs in which it acts."""
        acts, not_acts = (runs, events), (total.runs - runs, total.events - events)
        return (acts, not_acts) if self.toggles_cause_event else (not_acts, acts)

    def _to_mask(self, toggles: ToggleIds) -> int:
        return sum(self.bit_of_toggle[name] for name in toggles)

    def _choose_next_runs(
        self,
        hypotheses: list[CulpritHypothesis],
        weights: list[float],
        suspects: ToggleIds,
        active_counts: list[tuple[int, int]],
        total: EventCount,
    ) -> list[ToggleIds]:
        """Return the sets whose runs have the largest expected information."""
        likely = sorted(
            (i for i, weight in enumerate(weights) if weight > MIN_DECIDING_WEIGHT),
            key=lambda i: -weights[i],
        )[:MAX_DECIDING_HYPOTHESES]
        blame = dict.fromkeys(suspects, 0.0)
        for i in likely:
            for name in hypotheses[i].toggles:
                blame[name] += weights[i]
        order = sorted(suspects, key=lambda name: (-blame[name], self.universe.toggles.index(name)))
        options: dict[ToggleIds, None] = {NO_TOGGLES: None}
        lengths = {max(1, round(len(order) * part)) for part in SUSPECT_FRACTIONS} | {1, 2, 3}
        for length in sorted(min(one, len(order)) for one in lengths):
            for fitting in self.universe.list_largest_sets(frozenset(order[:length])):
                options[fitting] = None
        for i in likely[:4]:
            for toggles in hypotheses[i].culprit_sets:
                options[toggles] = None
            for fitting in self.universe.list_largest_sets(suspects - hypotheses[i].toggles):
                options[fitting] = None
        outcomes = [
            self._predict_outcomes(hypotheses[i], weights[i], *active_counts[i], total)
            for i in likely
        ]
        likely_weight = sum(weights[i] for i in likely)
        scored = []
        for place, toggles in enumerate(options):
            mask = self._to_mask(toggles)
            tried = self.counts.get(mask, EventCount()).runs + self.inconclusive_runs[toggles]
            if tried < self.repeat:
                information = _estimate_information(mask, outcomes, likely_weight)
                scored.append((-information, tried, place, toggles))
        scored.sort(key=lambda entry: entry[:3])
        return [toggles for *_, toggles in scored[: self.jobs]]

    def _predict_outcomes(
        self,
        hypothesis: CulpritHypothesis,
        weight: float,
        active_runs: int,
        active_events: int,
        total: EventCount,
    ) -> PredictedOutcomes:
        """Weigh the rates of the event under a hypothesis, and the entropies of these rates."""
        often, seldom = self._split_counts(active_runs, active_events, total)
        often_rate = (often[1] + 1) / (often[0] + 2)
        seldom_rate = (seldom[1] + 0.05) / (seldom[0] + 1)
        rates = often_rate, seldom_rate
        inside, outside = rates if self.toggles_cause_event else reversed(rates)
        return PredictedOutcomes(
            hypothesis.mask,
            hypothesis.each_acts_alone,
            (weight * inside, weight * compute_entropy(inside)),
            (weight * outside, weight * compute_entropy(outside)),
        )

    # Proof

    def _confirm_culprits(
        self, toggles: ToggleIds, culprits: ToggleIds
    ) -> QuestionGenerator[tuple[str, float]]:
        """Compare fresh runs with one set alone to runs with all but the culprits."""
        rest = self.universe.list_largest_sets(frozenset(self.universe.toggles) - culprits)[0]
        test = SequentialRateTest(self.alpha)
        for _ in range(self.repeat):
            alone, others = yield from self._run_batch([toggles, rest], "proof")
            if alone is None or others is None:
                continue
            test.add_pair(alone, others) if self.toggles_cause_event else test.add_pair(
                others, alone
            )
            if test.is_decided:
                return "", 1 / test.e_value
        names = " + ".join(self.universe.sort_toggles(toggles))
        what = "happens" if self.toggles_cause_event else "stays away"
        return (
            f"the likeliest is {names}, but run afresh it {what} {test.counts_text} "
            f"with and without: not enough to be sure after {self.repeat} runs of each",
            0.0,
        )


def _estimate_information(mask: int, outcomes: list[PredictedOutcomes], total: float) -> float:
    """Return the expected information of a run with these toggles, in nats."""
    expected = spread = 0.0
    for culprits, each_acts_alone, inside, outside in outcomes:
        common = mask & culprits  # as `CulpritHypothesis.is_active_in`, without a call
        is_active = common and (each_acts_alone or common == culprits)
        rate, entropy = inside if is_active else outside
        expected += rate
        spread += entropy
    return compute_entropy(expected / total) - spread / total
