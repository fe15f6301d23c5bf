"""A search as it is run: questions become runs, each is kept as it ends, and the end is told."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from harness.bisect import questions
from harness.bisect.halving import Halving
from harness.bisect.odds import Odds
from harness.bisect.questions import NOTHING, Found, Question, Toggles
from harness.bisect.runners import Job, Place, Runner
from harness.bisect.toggles import Candidates
from harness.errors import UnfixError
from harness.patching.plan import Direction
from harness.store.bisect.values import Answer, Part, Search, Trial

T = TypeVar("T")
SHOWN = 40  # lines of a failing command's output in an error
UNAPPLIED = "no process that imports SGLang applied its toggles"
AT_FIRST = 3  # runs with nothing toggled, before a flaky search begins


class Teller:
    """Who wants to know how a search goes; this one does not."""

    def began(self, part: Part) -> None: ...

    def ran(self, trial: Trial, number: int) -> None: ...


class Log(Protocol):
    """Where runs are written as they end: the store."""

    def trial(self, search: str, number: int, trial: Trial) -> None: ...

    def end(self, search: Search) -> None: ...


class Hunt:
    """One search: its runs, kept and numbered."""

    def __init__(self, search: Search, runner: Runner, log: Log, teller: Teller) -> None:
        self.search = search
        self.runner = runner
        self.log = log
        self.teller = teller
        # Of a search that goes on: what was run before is not run again.
        self._known: dict[tuple[str, str, Toggles, str], deque[Trial]] = defaultdict(deque)
        for trial in search.trials:
            self._known[key(trial)].append(trial)
        self._stored = len(search.trials)
        search.trials = []

    def run(
        self, place: Place, candidates: Candidates, part: str, asked: list[Question]
    ) -> list[Trial]:
        """The runs that these questions ask for."""
        trials: dict[int, Trial] = {}
        jobs: list[tuple[int, Job]] = []
        for index, question in enumerate(asked):
            known = self._known[part, place.name, question.toggles, question.why]
            if known:
                trials[index] = known.popleft()
                self.keep(trials[index], fresh=False)
                continue
            toggles = tuple(candidates.universe.ordered(question.toggles))
            choices = candidates.choices(question.toggles)
            jobs.append((index, Job(place, toggles, choices, question.why)))
        for at, trial in self.runner.run([job for _, job in jobs]):
            trial.part = part
            trials[jobs[at][0]] = trial
            self.keep(trial, fresh=True)
        return [trials[index] for index in range(len(asked))]

    def keep(self, trial: Trial, fresh: bool = True) -> None:
        self.search.trials.append(trial)
        if fresh:
            self._stored += 1
            self.log.trial(self.search.id, self._stored, trial)
        self.teller.ran(trial, len(self.search.trials))

    def take_known(self) -> list[Trial]:
        """What was run before, for a search that asks in a way of its own."""
        known = [trial for trials in self._known.values() for trial in trials]
        self._known.clear()
        return known

    # Toggles

    def toggles(
        self,
        place: Place,
        candidates: Candidates,
        *,
        name: str = "toggles",
        based: bool = False,  # it is known already what the command says with nothing toggled
        every: bool = False,
        repeat: int = 1,
        confidence: float = 0.99,
    ) -> Part:
        """Which of the candidates it is about; the outcome with nothing toggled comes first."""
        everything = candidates.choices(frozenset(candidates.universe.toggles))
        refused = self.runner.unfit(place, everything)
        candidates = candidates.without(refused)
        part = candidates.part(name, place.name)
        part.refused = refused
        self.search.parts.append(part)
        self.teller.began(part)

        def ask(batch: list[Question]) -> list[questions.Answer]:
            trials = self.run(place, candidates, name, batch)
            if all(UNAPPLIED in trial.how for trial in trials):
                raise UnfixError(
                    f"with toggles asked for, the command came to: {trials[0].how} (is SGLang "
                    f"imported, by a Python that heeds PYTHONPATH?){told(trials[0])}"
                )
            return [_answer(trial, candidates.direction) for trial in trials]

        if not based:
            self._base(place, candidates, name, repeat)
        if not candidates.universe.toggles:
            found = Found()
        elif repeat > 1:
            causes = candidates.direction is Direction.REVERT
            found = drive(
                Odds(
                    candidates.universe,
                    repeat,
                    confidence,
                    causes=causes,
                    jobs=self.runner.jobs,
                    every=every,
                ).go(),
                ask,
            )
        else:
            found = drive(
                Halving(
                    candidates.universe, self.runner.jobs, every, twice=not self.runner.steady
                ).go(),
                ask,
            )
            self._steady_still(found, place, candidates, name)
        _fill(part, found, candidates)
        return part

    def _base(self, place: Place, candidates: Candidates, part: str, repeat: int) -> None:
        """What the command says with nothing toggled, before any search."""
        times = AT_FIRST if repeat > 1 else 1 if self.runner.steady else 2
        trials: list[Trial] = []
        while len(trials) < times:
            # One alone, at first: most wrong calls end here.
            count = 1 if not trials else times - len(trials)
            trials += self.run(place, candidates, part, [Question(NOTHING, "base")] * count)
            self._fit_to_search(trials, candidates.direction, place, repeat)

    def _fit_to_search(
        self, trials: list[Trial], direction: Direction, place: Place, repeat: int
    ) -> None:
        last = trials[-1]
        on = f"on {place.name} with nothing toggled"
        if last.answer is Answer.CANNOT_TELL:
            raise UnfixError(f"{on} it cannot be told: {last.how}{told(last)}")
        wanted = Answer.PASSES if direction is Direction.REVERT else Answer.FAILS
        if len({trial.answer for trial in trials}) > 1:
            if repeat == 1:
                both = " and ".join(dict.fromkeys(trial.how for trial in trials))
                raise UnfixError(
                    f"{on} its outcome changes by itself ({both}): --repeat N searches a "
                    f"symptom that does not show each time{told(last)}"
                )
        elif last.answer is not wanted and (repeat == 1 or len(trials) == AT_FIRST):
            other = (
                "the command fails already: repair it, or if that is the symptom, --enable finds "
                "the fixes that are missing"
                if direction is Direction.REVERT
                else "the command passes already; without --enable, the fixes are found whose "
                "absence makes it fail"
            )
            raise UnfixError(f"{on} {other} ({last.how}){told(last)}")

    def _steady_still(self, found: Found, place: Place, candidates: Candidates, part: str) -> None:
        """Once more with nothing toggled, where it is not known to come out alike."""
        if self.runner.steady or not found.sets or found.cannot_tell:
            return
        (trial,) = self.run(place, candidates, part, [Question(NOTHING, "proof")])
        if _answer(trial, candidates.direction).shows is not False:
            found.cannot_tell = (
                f"with nothing toggled it came out in two ways ({trial.how} at the end): "
                "--repeat N searches such a symptom"
            )


def drive(
    search: questions.Search[T], ask: Callable[[list[Question]], list[questions.Answer]]
) -> T:
    """Carry questions to whoever answers them, until the search is over."""
    try:
        batch = next(search)
        while True:
            batch = search.send(ask(batch))
    except StopIteration as stopped:
        found: T = stopped.value
        return found


def key(trial: Trial) -> tuple[str, str, Toggles, str]:
    return trial.part, trial.where, frozenset(trial.toggles), trial.why


def told(trial: Trial) -> str:
    """The end of what a command printed."""
    if not trial.output:
        return ""
    lines = trial.output.splitlines()
    cut = f"… {len(lines) - SHOWN} lines before these\n" if len(lines) > SHOWN else ""
    return f"\n{cut}" + "\n".join(lines[-SHOWN:])


def _answer(trial: Trial, direction: Direction) -> questions.Answer:
    if trial.answer is Answer.CANNOT_TELL:
        return questions.Answer(None)
    wanted = Answer.FAILS if direction is Direction.REVERT else Answer.PASSES
    ran = None
    if trial.ran is not None:
        ran = frozenset(name for name, count in trial.ran.items() if count)
    return questions.Answer(trial.answer is wanted, ran)


def _fill(part: Part, found: Found, candidates: Candidates) -> None:
    part.sets = [candidates.universe.ordered(one) for one in found.sets]
    part.rest_shows = found.rest_shows
    part.sure, part.least = found.sure, found.least
    part.cannot_tell = found.cannot_tell
    part.patches = {name: candidates.patch(name) for one in part.sets for name in one}
    part.done = True


def expected(candidates: Candidates, jobs: int, every: bool, base: int) -> tuple[int, int]:
    """How many runs it takes at most and on average if one of them is the culprit."""
    runs = []
    for culprit in candidates.universe.toggles:
        asked: list[Question] = []

        def ask(
            batch: list[Question], culprit: str = culprit, asked: list[Question] = asked
        ) -> list[questions.Answer]:
            asked += batch
            return [questions.Answer(culprit in question.toggles) for question in batch]

        drive(Halving(candidates.universe, jobs, every, twice=base > 1).go(), ask)
        runs.append(len(asked) + base)
    return max(runs, default=base), round(sum(runs) / len(runs)) if runs else base


def named(sets: list[list[str]]) -> str:
    return "; ".join(" together with ".join(one) for one in sets)


def summary(part: Part) -> str:
    """What a search over toggles comes to, in one sentence."""
    makes = "fail" if part.direction == "revert" else "pass"
    out = "taken out" if part.direction == "revert" else "put in"
    if part.cannot_tell:
        return f"It cannot be told: {part.cannot_tell}."
    if not part.sets:
        if not part.toggles:
            return f"No toggle can be {out} on {part.where}."
        if part.sure is not None and part.least is not None:
            return (
                f"None of {len(part.toggles)} toggles makes it {makes} in more than "
                f"{part.least:.1%} of the runs when {out} on {part.where}, at {part.sure:.1%} "
                "confidence."
            )
        return (
            f"None of {len(part.toggles)} toggles, alone or all together, makes it {makes} when "
            f"{out} on {part.where}."
        )
    several = len(part.sets) > 1 or len(part.sets[0]) > 1
    sure = f", at {part.sure:.1%} confidence" if part.sure is not None else ""
    text = f"{named(part.sets)}: {out}, {'they make' if several else 'it makes'} it {makes}{sure}"
    if part.rest_shows:
        text += "; so do others (--all finds them)"
    elif part.rest_shows is None:
        text += "; with all the others it cannot be told"
    elif len(part.toggles) > sum(map(len, part.sets)):
        text += "; all the others do not"
    return text + "."
