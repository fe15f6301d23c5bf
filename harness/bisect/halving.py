"""The smallest sets of toggles that show a symptom which shows each time.

First the plain case, one culprit: each question halves the suspects, so n of them take log2 n
questions, and a proof settles whether the case was plain. Where it was not (several act only
together, some mask others, some answers say nothing) the divide and conquer of QuickXplain makes
a set minimal, and a tree of what to leave out finds further sets, or shows that there are none.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from itertools import combinations

from harness.bisect.questions import NOTHING, Answer, Found, Question, Search, Toggles, Universe

TRIES = 200  # orders of the suspects in which no question holds two that clash
PATIENCE = 3  # rounds that may tell nothing


class Halving:
    """One search; its questions depend on the answers alone, so a log replays it."""

    def __init__(
        self, universe: Universe, jobs: int = 1, every: bool = False, twice: bool = False
    ) -> None:
        self.universe = universe
        self.jobs = jobs
        self.every = every  # find all sets, not one of the smallest
        self.twice = twice  # what is found must have shown it more than once
        self.shown: Counter[Toggles] = Counter()  # how often each did
        self.open: list[Toggles] = []  # smaller than what was found, and cannot be told
        self.seen: dict[Toggles, Answer] = {}
        self.proved: dict[Toggles, Answer] = {}
        self.unsteady: list[Toggles] = []  # came out in two ways

    def go(self) -> Search[Found]:
        """Search, and prove what was found."""
        everything = frozenset(self.universe.toggles)
        self.seen[NOTHING] = Answer(False)
        first = yield from self._plain(everything, NOTHING if self.every else everything)
        if first is None:
            first = yield from self._minimal_in(everything)
        if first is None:
            first = yield from self._scattered(everything)
        if first is None:
            return self._nothing()
        sets = [first]
        if self.every or len(first) > 1:
            sets = yield from self._others(first, everything)
        smallest = min(map(len, sets))
        kept = sets if self.every else [next(s for s in sets if len(s) == smallest)]
        return (yield from self._prove(kept, everything))

    def _nothing(self) -> Found:
        silent = sum(answer.shows is None for answer in self.seen.values())
        if silent:
            return Found(
                cannot_tell=f"{silent} of {len(self.seen) - 1} sets of toggles could not be told, "
                "and none of the others shows it"
            )
        return Found()

    # Asking

    def _ask(self, sets: list[Toggles], why: str = "search") -> Search[list[Answer]]:
        """The answers for these sets; only a proof asks again what was heard before."""
        heard = self.proved if why == "proof" else self.seen
        unheard = list(dict.fromkeys(s for s in sets if s not in heard))
        if unheard:
            answers = yield [Question(toggles, why) for toggles in unheard]
            for toggles, answer in zip(unheard, answers, strict=True):
                before = self.seen.get(toggles, answer).shows
                if None not in (before, answer.shows) and before != answer.shows:
                    self.unsteady.append(toggles)
                self.seen[toggles] = answer
                self.shown[toggles] += bool(answer.shows)
                if why == "proof":
                    self.proved[toggles] = answer
        return [self.seen[toggles] for toggles in sets]

    def _shows(self, toggles: Toggles) -> Search[bool]:
        (answer,) = yield from self._ask([toggles])
        return bool(answer.shows)

    # One culprit

    def _plain(self, among: Toggles, everything: Toggles = NOTHING) -> Search[Toggles | None]:
        """The one culprit, if it is as simple as that, and its proof."""
        suspect = yield from self._halve(among)
        if suspect is None:
            return None
        alone = frozenset({suspect})
        rest = self._all_but(alone, everything) if everything else []
        answer, *_ = yield from self._ask([alone, *rest], "proof")
        return alone if answer.shows else None

    def _all_but(self, culprits: Toggles, everything: Toggles) -> list[Toggles]:
        return [s for s in self.universe.largest(everything - culprits) if s]

    def _halve(self, among: Toggles) -> Search[str | None]:
        suspects = self.universe.ordered(among)
        dull = 0
        while len(suspects) > 1:
            questions = self._questions(suspects, dull)
            answers = yield from self._ask(questions)
            narrowed = self._narrowed(suspects, questions, answers)
            dull = dull + 1 if len(narrowed) == len(suspects) else 0
            if not narrowed or dull == PATIENCE:
                return None
            suspects = narrowed
        return suspects[0] if suspects else None

    def _questions(self, suspects: list[str], dull: int) -> list[Toggles]:
        """Independent questions that part the suspects evenly: a bit each of a suspect's number."""
        bits = max(1, min(self.jobs, math.ceil(math.log2(len(suspects)))))
        order = list(suspects)
        chance = random.Random(dull)
        if dull:
            chance.shuffle(order)
        for _ in range(TRIES):
            cells = 2**bits
            number = {name: i * cells // len(order) for i, name in enumerate(order)}
            sets = [
                frozenset(name for name in order if not number[name] >> bit & 1)
                for bit in reversed(range(bits))
            ]
            if all(map(self.universe.fits, sets)):
                return sets
            chance.shuffle(order)
        half: Toggles = NOTHING
        for name in order:
            if len(half) < len(order) // 2 and self.universe.fits(half | {name}):
                half |= {name}
        return [half]

    def _narrowed(
        self, suspects: list[str], questions: list[Toggles], answers: list[Answer]
    ) -> list[str]:
        left = set(suspects)
        shown = [(q, a) for q, a in zip(questions, answers, strict=True) if a.shows]
        for question, answer in zip(questions, answers, strict=True):
            if answer.shows is False:
                left -= question
        without_shown = set(left)
        for question, _ in shown:
            left &= question
        if shown and not left:
            # Two that act alone, one in each: go on with one.
            left = without_shown & min((question for question, _ in shown), key=len)
        for _, answer in shown:
            # Code that never ran is the last to be suspected; the proof tells if that was wrong.
            if answer.ran is not None and left & answer.ran:
                left &= answer.ran
        return [name for name in suspects if name in left]

    # Several that act together

    def _minimal_in(self, among: Toggles) -> Search[Toggles | None]:
        """A set in which none can be spared, or None if nothing in here shows it."""
        shown = self._smallest_shown(among)
        if shown is None:
            yield from self._ask(self.universe.largest(among))
            shown = self._smallest_shown(among)
        if shown is None:
            return None
        one = yield from self._plain(shown)
        if one is not None:
            return one
        return (yield from self._minimised(shown))

    def _smallest_shown(self, among: Toggles) -> Toggles | None:
        shown = [s for s, answer in self.seen.items() if answer.shows and s <= among]
        return min(shown, key=lambda s: (len(s), sorted(s)), default=None)

    def _minimised(self, shown: Toggles) -> Search[Toggles]:
        ran = self.seen[shown].ran
        likely = shown & ran if ran is not None else shown
        if NOTHING < likely < shown and (yield from self._shows(likely)):
            shown = likely
        needed = frozenset(
            (yield from self._explained(NOTHING, False, self.universe.ordered(shown)))
        )
        if not (yield from self._shows(needed)):
            needed = shown  # others mask it: take away one by one instead
        while True:
            smaller = [needed - {name} for name in self.universe.ordered(needed)]
            answers = yield from self._ask([s for s in smaller if s])
            shows = [s for s, a in zip([s for s in smaller if s], answers, strict=True) if a.shows]
            if not shows:
                asked = [s for s in smaller if s]
                self.open += [s for s, a in zip(asked, answers, strict=True) if a.shows is None]
                return needed
            needed = shows[0]

    def _explained(
        self, background: Toggles, grown: bool, candidates: list[str]
    ) -> Search[list[str]]:
        """QuickXplain: the part of the candidates that must be there beside the background."""
        if grown and (yield from self._shows(background)):
            return []
        if len(candidates) == 1:
            return candidates
        middle = (len(candidates) + 1) // 2
        first, second = candidates[:middle], candidates[middle:]
        later = yield from self._explained(background | frozenset(first), True, second)
        kept = background | frozenset(later)
        sooner = yield from self._explained(kept, bool(later), first)
        return [*sooner, *later]

    def _scattered(self, among: Toggles) -> Search[Toggles | None]:
        """Where all together do not show it, perhaps because some hide it: each by itself.

        Where some sets could not be told, ever smaller parts, to get around what silences them.
        """
        names = self.universe.ordered(among)
        silent = any(answer.shows is None for answer in self.seen.values())
        parts = 2 if silent else max(len(names), 1)
        while parts < 2 * len(names):
            size = math.ceil(len(names) / parts)
            blocks = [frozenset(names[i : i + size]) for i in range(0, len(names), size)]
            rests = [among - block for block in blocks] if silent and size > 1 else []
            for toggles in [*blocks, *rests]:
                fitting = self.universe.largest(toggles)
                answers = yield from self._ask(fitting)
                shown = [s for s, answer in zip(fitting, answers, strict=True) if answer.shows]
                if shown:
                    return (yield from self._minimised(shown[0]))
            parts *= 2
        return None

    # Whether there are others

    def _others(self, first: Toggles, everything: Toggles) -> Search[list[Toggles]]:
        """Every minimal set, or as many as it takes to know that none is smaller.

        Whatever other set there is lacks a toggle of each set that is known, and two of them if it
        is smaller: leave those out, and see whether the symptom still shows.
        """
        lacking = 1 if self.every else 2
        sets = [first]
        left_out: deque[Toggles] = deque([NOTHING])
        done: set[Toggles] = set()
        while left_out:
            out = left_out.popleft()
            if out in done:
                continue
            done.add(out)
            label = next((s for s in sets if not s & out), None)
            if label is None:
                label = yield from self._minimal_in(everything - out)
                if label is None:
                    continue
                sets.append(label)
            if not self.every and min(map(len, sets)) == 1:
                break
            lacked = combinations(self.universe.ordered(label), lacking)
            left_out.extend(out | set(names) for names in lacked)
        return sets

    # Proof

    def _prove(self, sets: list[Toggles], everything: Toggles) -> Search[Found]:
        """Each set by itself, and all but them, run afresh."""
        rest = self._all_but(frozenset().union(*sets), everything)
        answers = yield from self._ask([*sets, *rest], "proof")
        found = Found(sets=sets)
        again = [one for one in sets if self.twice and self.shown[one] < 2]
        if again:
            more = yield [Question(one, "again") for one in again]
            self.unsteady += [one for one, a in zip(again, more, strict=True) if not a.shows]
        smaller = [one for one in self.open if any(one < whole for whole in sets)]
        if smaller:
            names = " + ".join(self.universe.ordered(smaller[0]))
            found.cannot_tell = (
                "all of it shows it, but whether it takes all of it cannot be told, nor what "
                f"{names} alone does"
            )
        if self.unsteady or not all(answer.shows for answer in answers[: len(sets)]):
            names = " + ".join(self.universe.ordered([*self.unsteady, *sets][0]))
            found.cannot_tell = (
                f"{names} came out in two ways: the outcome changes while nothing does "
                "(--repeat N searches such a symptom)"
            )
        shows = {answer.shows for answer in answers[len(sets) :]}
        found.rest_shows = True if True in shows else None if None in shows else False
        return found
