"""The smallest sets of toggles that show a symptom which shows in every run.

First the common case, one culprit: each question halves the suspects, so n of them take log2 n
questions, and a proof confirms the one that is left. Where the proof fails (several act only
together, some mask others, some runs are inconclusive) QuickXplain's divide and conquer makes a set
minimal, and a hitting-set tree of toggles to leave out finds further sets, or excludes them.

Example: of 8 toggles `f` is the culprit. {a,b,c,d} passes, {e,f} fails, {e} passes: three
questions; the proof runs {f}, which fails, and all but `f`, which pass.

The invariant: questions depend on earlier answers alone, so the log of a search replays it.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from itertools import combinations

from harness.runs.bisect.search_questions import (
    NO_TOGGLES,
    QuestionGenerator,
    SearchAnswer,
    SearchQuestion,
    SearchResult,
    ToggleIds,
    ToggleUniverse,
)

MAX_SHUFFLES = 200  # tries for an order in which no question has two that conflict
MAX_UNHELPFUL_ROUNDS = 3  # rounds without progress


class HalvingSearch:
    """One search over a universe of toggles."""

    def __init__(
        self,
        universe: ToggleUniverse,
        jobs: int = 1,
        find_all: bool = False,
        confirm_twice: bool = False,
    ) -> None:
        self.universe = universe
        self.jobs = jobs
        self.find_all = find_all  # find all sets, not one of the smallest
        self.confirm_twice = confirm_twice  # a found set must show the symptom twice
        self.times_shown: Counter[ToggleIds] = Counter()  # symptoms by set
        self.undecided_subsets: list[ToggleIds] = []  # inconclusive and smaller than the result
        self.answers: dict[ToggleIds, SearchAnswer] = {}
        self.proof_answers: dict[ToggleIds, SearchAnswer] = {}
        self.inconsistent_sets: list[ToggleIds] = []  # sets with two outcomes

    def search(self) -> QuestionGenerator[SearchResult]:
        """Search, and confirm the result by fresh runs."""
        everything = frozenset(self.universe.toggles)
        self.answers[NO_TOGGLES] = SearchAnswer(False)
        first = yield from self._find_single_culprit(
            everything, NO_TOGGLES if self.find_all else everything
        )
        if first is None:
            first = yield from self._find_minimal_set(everything)
        if first is None:
            first = yield from self._search_parts(everything)
        if first is None:
            return self._report_nothing_found()
        sets = [first]
        if self.find_all or len(first) > 1:
            sets = yield from self._find_other_sets(first, everything)
        smallest = min(map(len, sets))
        reported = sets if self.find_all else [next(s for s in sets if len(s) == smallest)]
        return (yield from self._confirm_sets(reported, everything))

    def _report_nothing_found(self) -> SearchResult:
        silent = sum(answer.shows_symptom is None for answer in self.answers.values())
        if silent:
            return SearchResult(
                cannot_tell=f"{silent} of {len(self.answers) - 1} sets of toggles gave no "
                "answer, and none of the others shows the symptom"
            )
        return SearchResult()

    # Questions

    def _ask_about(
        self, sets: list[ToggleIds], why: str = "search"
    ) -> QuestionGenerator[list[SearchAnswer]]:
        """Return the answers for these sets; only a proof repeats an earlier question."""
        known = self.proof_answers if why == "proof" else self.answers
        unknown = list(dict.fromkeys(s for s in sets if s not in known))
        if unknown:
            answers = yield [SearchQuestion(toggles, why) for toggles in unknown]
            for toggles, answer in zip(unknown, answers, strict=True):
                before = self.answers.get(toggles, answer).shows_symptom
                if None not in (before, answer.shows_symptom) and before != answer.shows_symptom:
                    self.inconsistent_sets.append(toggles)
                self.answers[toggles] = answer
                self.times_shown[toggles] += bool(answer.shows_symptom)
                if why == "proof":
                    self.proof_answers[toggles] = answer
        return [self.answers[toggles] for toggles in sets]

    def _shows_symptom(self, toggles: ToggleIds) -> QuestionGenerator[bool]:
        (answer,) = yield from self._ask_about([toggles])
        return bool(answer.shows_symptom)

    # One culprit

    def _find_single_culprit(
        self, candidates: ToggleIds, everything: ToggleIds = NO_TOGGLES
    ) -> QuestionGenerator[ToggleIds | None]:
        """Return the only culprit after its proof, or None if there is no single one."""
        suspect = yield from self._halve_suspects(candidates)
        if suspect is None:
            return None
        alone = frozenset({suspect})
        rest = self._list_sets_without(alone, everything) if everything else []
        answer, *_ = yield from self._ask_about([alone, *rest], "proof")
        return alone if answer.shows_symptom else None

    def _list_sets_without(self, culprits: ToggleIds, everything: ToggleIds) -> list[ToggleIds]:
        return [s for s in self.universe.list_largest_sets(everything - culprits) if s]

    def _halve_suspects(self, candidates: ToggleIds) -> QuestionGenerator[str | None]:
        suspects = self.universe.sort_toggles(candidates)
        unhelpful_rounds = 0
        while len(suspects) > 1:
            questions = self._choose_questions(suspects, unhelpful_rounds)
            answers = yield from self._ask_about(questions)
            narrowed = self._narrow_suspects(suspects, questions, answers)
            is_unhelpful = len(narrowed) == len(suspects)
            unhelpful_rounds = unhelpful_rounds + 1 if is_unhelpful else 0
            if not narrowed or unhelpful_rounds == MAX_UNHELPFUL_ROUNDS:
                return None
            suspects = narrowed
        return suspects[0] if suspects else None

    def _choose_questions(self, suspects: list[str], unhelpful_rounds: int) -> list[ToggleIds]:
        """Choose independent questions that halve the suspects: one for each bit of their index."""
        bits = max(1, min(self.jobs, math.ceil(math.log2(len(suspects)))))
        order = list(suspects)
        chance = random.Random(unhelpful_rounds)
        if unhelpful_rounds:
            chance.shuffle(order)
        for _ in range(MAX_SHUFFLES):
            cells = 2**bits
            number = {name: i * cells // len(order) for i, name in enumerate(order)}
            sets = [
                frozenset(name for name in order if not number[name] >> bit & 1)
                for bit in reversed(range(bits))
            ]
            if all(map(self.universe.can_combine, sets)):
                return sets
            chance.shuffle(order)
        half: ToggleIds = NO_TOGGLES
        for name in order:
            if len(half) < len(order) // 2 and self.universe.can_combine(half | {name}):
                half |= {name}
        return [half]

    def _narrow_suspects(
        self, suspects: list[str], questions: list[ToggleIds], answers: list[SearchAnswer]
    ) -> list[str]:
        left = set(suspects)
        shown = [(q, a) for q, a in zip(questions, answers, strict=True) if a.shows_symptom]
        for question, answer in zip(questions, answers, strict=True):
            if answer.shows_symptom is False:
                left -= question
        without_shown = set(left)
        for question, _ in shown:
            left &= question
        if shown and not left:
            # Each part has a toggle that acts alone: continue with one part.
            left = without_shown & min((question for question, _ in shown), key=len)
        for _, answer in shown:
            # Toggles whose code never ran are suspected last; the proof would reveal a mistake.
            if answer.reached is not None and left & answer.reached:
                left &= answer.reached
        return [name for name in suspects if name in left]

    # Several that act together

    def _find_minimal_set(self, candidates: ToggleIds) -> QuestionGenerator[ToggleIds | None]:
        """Return a set without a superfluous toggle, or None if no candidates show the symptom."""
        shown = self._find_smallest_showing(candidates)
        if shown is None:
            yield from self._ask_about(self.universe.list_largest_sets(candidates))
            shown = self._find_smallest_showing(candidates)
        if shown is None:
            return None
        culprit = yield from self._find_single_culprit(shown)
        if culprit is not None:
            return culprit
        return (yield from self._minimize_set(shown))

    def _find_smallest_showing(self, candidates: ToggleIds) -> ToggleIds | None:
        shown = [
            s for s, answer in self.answers.items() if answer.shows_symptom and s <= candidates
        ]
        return min(shown, key=lambda s: (len(s), sorted(s)), default=None)

    def _minimize_set(self, showing_set: ToggleIds) -> QuestionGenerator[ToggleIds]:
        ran = self.answers[showing_set].reached
        likely = showing_set & ran if ran is not None else showing_set
        if NO_TOGGLES < likely < showing_set and (yield from self._shows_symptom(likely)):
            showing_set = likely
        needed = frozenset(
            (
                yield from self._run_quickxplain(
                    NO_TOGGLES, False, self.universe.sort_toggles(showing_set)
                )
            )
        )
        if not (yield from self._shows_symptom(needed)):
            needed = showing_set  # others mask it: remove one by one instead
        while True:
            smaller = [needed - {name} for name in self.universe.sort_toggles(needed)]
            answers = yield from self._ask_about([s for s in smaller if s])
            shows = [
                s
                for s, a in zip([s for s in smaller if s], answers, strict=True)
                if a.shows_symptom
            ]
            if not shows:
                nonempty = [s for s in smaller if s]
                self.undecided_subsets += [
                    s for s, a in zip(nonempty, answers, strict=True) if a.shows_symptom is None
                ]
                return needed
            needed = shows[0]

    def _run_quickxplain(
        self, background: ToggleIds, background_grew: bool, candidates: list[str]
    ) -> QuestionGenerator[list[str]]:
        """Find by QuickXplain the candidates that the symptom needs beside the background."""
        if background_grew and (yield from self._shows_symptom(background)):
            return []
        if len(candidates) == 1:
            return candidates
        middle = (len(candidates) + 1) // 2
        first, second = candidates[:middle], candidates[middle:]
        later = yield from self._run_quickxplain(background | frozenset(first), True, second)
        with_later = background | frozenset(later)
        sooner = yield from self._run_quickxplain(with_later, bool(later), first)
        return [*sooner, *later]

    def _search_parts(self, candidates: ToggleIds) -> QuestionGenerator[ToggleIds | None]:
        """Search single toggles if some may mask the symptom; if some runs are inconclusive, search
        ever smaller parts, to exclude the toggles that cause it.
        """
        names = self.universe.sort_toggles(candidates)
        silent = any(answer.shows_symptom is None for answer in self.answers.values())
        parts = 2 if silent else max(len(names), 1)
        while parts < 2 * len(names):
            size = math.ceil(len(names) / parts)
            blocks = [frozenset(names[i : i + size]) for i in range(0, len(names), size)]
            rests = [candidates - block for block in blocks] if silent and size > 1 else []
            for toggles in [*blocks, *rests]:
                fitting = self.universe.list_largest_sets(toggles)
                answers = yield from self._ask_about(fitting)
                shown = [
                    s for s, answer in zip(fitting, answers, strict=True) if answer.shows_symptom
                ]
                if shown:
                    return (yield from self._minimize_set(shown[0]))
            parts *= 2
        return None

    # Other sets

    def _find_other_sets(
        self, first_set: ToggleIds, everything: ToggleIds
    ) -> QuestionGenerator[list[ToggleIds]]:
        """Find every minimal set, or enough sets to exclude a smaller one.

        Another set lacks a toggle of each known set, and two of them if it is smaller. Leave those
        out, and search again.
        """
        lacking = 1 if self.find_all else 2
        sets = [first_set]
        left_out: deque[ToggleIds] = deque([NO_TOGGLES])
        done: set[ToggleIds] = set()
        while left_out:
            out = left_out.popleft()
            if out in done:
                continue
            done.add(out)
            label = next((s for s in sets if not s & out), None)
            if label is None:
                label = yield from self._find_minimal_set(everything - out)
                if label is None:
                    continue
                sets.append(label)
            if not self.find_all and min(map(len, sets)) == 1:
                break
            lacked = combinations(self.universe.sort_toggles(label), lacking)
            left_out.extend(out | set(names) for names in lacked)
        return sets

    # Proof

    def _confirm_sets(
        self, sets: list[ToggleIds], everything: ToggleIds
    ) -> QuestionGenerator[SearchResult]:
        """Run each set alone, and all toggles but the culprits, afresh."""
        rest = self._list_sets_without(frozenset().union(*sets), everything)
        answers = yield from self._ask_about([*sets, *rest], "proof")
        result = SearchResult(minimal_sets=sets)
        shown_once = [one for one in sets if self.confirm_twice and self.times_shown[one] < 2]
        if shown_once:
            repetitions = yield [SearchQuestion(one, "again") for one in shown_once]
            self.inconsistent_sets += [
                one for one, a in zip(shown_once, repetitions, strict=True) if not a.shows_symptom
            ]
        smaller = [one for one in self.undecided_subsets if any(one < whole for whole in sets)]
        if smaller:
            names = " + ".join(self.universe.sort_toggles(smaller[0]))
            result.cannot_tell = (
                "all of it shows it, but whether fewer would is unknown, like the outcome "
                f"of {names} alone"
            )
        if self.inconsistent_sets or not all(
            answer.shows_symptom for answer in answers[: len(sets)]
        ):
            names = " + ".join(self.universe.sort_toggles([*self.inconsistent_sets, *sets][0]))
            result.cannot_tell = (
                f"{names} came out in two ways: the outcome changes while nothing does "
                "(--repeat N searches such a symptom)"
            )
        shows = {answer.shows_symptom for answer in answers[len(sets) :]}
        result.others_show_symptom = True if True in shows else None if None in shows else False
        return result
