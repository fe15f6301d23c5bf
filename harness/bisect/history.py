"""Where in a history the outcome changes, and which toggles explain the step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.bisect.hunt import Hunt, named, told
from harness.bisect.questions import NOTHING, Question, Universe
from harness.bisect.runners import Place
from harness.bisect.toggles import Candidates, candidates, held_choices
from harness.errors import UnfixError
from harness.matching.states import State, find
from harness.patching.plan import Direction
from harness.registry.catalogue import Catalogue
from harness.registry.schema import Toggle
from harness.releases.sources import PACKAGE, SourceTree
from harness.store.bisect.values import Answer, Part, Step, Trial

_FRAME = re.compile(rf'File "(?:[^"]*/)?({PACKAGE}/[^"]+)\.py"')


@dataclass(frozen=True)
class History:
    """The places from the oldest to the newest, and how to get one ready."""

    names: list[str]
    place: Callable[[str], Place]


def newest_first(good: Trial, bad: Trial) -> None:
    """Refuse ends that do not differ as the caller says."""
    for trial, name in ((good, "good"), (bad, "bad")):
        if trial.answer is Answer.CANNOT_TELL:
            raise UnfixError(f"--{name} {trial.where}: it cannot be told: {trial.how}{told(trial)}")
    if (good.answer, bad.answer) == (Answer.FAILS, Answer.PASSES):
        raise UnfixError(
            f"the wrong way round: it fails on --good {good.where} ({good.how}) and passes on "
            f"--bad {bad.where}; say --good {bad.where} --bad {good.where}"
        )
    if good.answer == bad.answer:
        verb = "passes" if good.answer is Answer.PASSES else "fails"
        raise UnfixError(
            f"nothing changes between them: it {verb} on {good.where} and on {bad.where} "
            f"({bad.how}){told(bad)}"
        )


class Releases:
    """A search over releases: the step first, then the toggles on its two sides."""

    def __init__(
        self,
        hunt: Hunt,
        history: History,
        toggles: list[Toggle],
        known: Catalogue,
        held: dict[str, str],
    ) -> None:
        self.hunt = hunt
        self.history = history
        self.toggles = toggles
        self.known = known
        self.held = held

    def go(self, good: str, bad: str, *, every: bool = False) -> Step:
        ends = [self._outcome(good), self._outcome(bad)]
        newest_first(*ends)
        step = Step(self.history.names)
        self.hunt.search.step = step
        by_place = {trial.where: trial for trial in ends}
        self._halve(step, by_place)
        if step.cannot_tell:
            return step
        self._proof(step, by_place)
        if not step.cannot_tell:
            self._explain(step, by_place, every)
        return step

    def _outcome(self, name: str, why: str = "search") -> Trial:
        place = self.history.place(name)
        nothing = Candidates(
            Direction.REVERT,
            {},
            Universe(()),
            {},
            held_choices(self.held, self.known, place.tree),
            place.tree,
        )
        (trial,) = self.hunt.run(place, nothing, "releases", [Question(NOTHING, why)])
        return trial

    def _halve(self, step: Step, trials: dict[str, Trial]) -> None:
        names = step.places
        low, high = 0, len(names) - 1
        first = trials[names[0]].answer
        untold: set[int] = set()
        while True:
            middle = (low + high) / 2
            inside = [i for i in range(low + 1, high) if i not in untold]
            if not inside:
                break
            at = min(inside, key=lambda i: (abs(i - middle), i))
            trial = trials[names[at]] = self._outcome(names[at])
            if trial.answer is Answer.CANNOT_TELL:
                untold.add(at)
            elif trial.answer is first:
                low = at
            else:
                high = at
        step.before, step.after = names[low], names[high]
        step.between = [names[i] for i in range(low + 1, high)]

    def _proof(self, step: Step, trials: dict[str, Trial]) -> None:
        """Both sides of the step once more, where runs are not known to come out alike."""
        if self.hunt.runner.steady:
            return
        for name in (step.before, step.after):
            again = self._outcome(name, "proof")
            if again.answer is not trials[name].answer:
                step.cannot_tell = (
                    f"on {name} it came out in two ways ({trials[name].how}, then {again.how})"
                )
                return

    # Why

    def _explain(self, step: Step, trials: dict[str, Trial], every: bool) -> None:
        passes, fails = step.before, step.after
        if trials[passes].answer is Answer.FAILS:
            passes, fails = fails, passes
        there, here = self.history.place(passes), self.history.place(fails)
        states = {
            toggle.id: (find(toggle, there.tree).state, find(toggle, here.tree).state)
            for toggle in self.toggles
        }
        older, newer = (0, 1) if step.before == passes else (1, 0)
        step.changed = [
            f"{name}: {both[older].value} → {both[newer].value}"
            for name, both in states.items()
            if both[0] is not both[1]
        ]
        changed = [toggle for toggle in self.toggles if len(set(states[toggle.id])) > 1]
        step.modules = differing(there.tree, here.tree)
        step.suspects = suspects(trials[fails], step.modules)
        if any(states[toggle.id][1] is State.BUGGY for toggle in changed):
            self._part("what mends it", here, Direction.ENABLE, changed, every)
        if any(states[toggle.id][0] is State.FIXED for toggle in changed):
            self._part("what breaks it", there, Direction.REVERT, changed, every)

    def _part(
        self, name: str, place: Place, direction: Direction, toggles: list[Toggle], every: bool
    ) -> None:
        chosen = candidates(toggles, direction, place.tree, self.known, self.held)
        self.hunt.toggles(place, chosen, name=name, every=every, based=True)


def differing(one: SourceTree, other: SourceTree) -> list[str]:
    """The modules whose text differs, or that only one of them has."""
    first, second = set(one.modules()), set(other.modules())
    found = first ^ second
    for module in first & second:
        texts = [source and source.text for source in (one.read(module), other.read(module))]
        if texts[0] != texts[1]:
            found.add(module)
    return sorted(found)


def suspects(failing: Trial, modules: list[str]) -> list[str]:
    """Of the modules that differ, those that the failing run's traceback goes through."""
    named = {frame.replace("/", ".") for frame in _FRAME.findall(failing.output)}
    return sorted(named & set(modules))


def summary(step: Step, parts: list[Part]) -> tuple[str, str]:
    """The verdict of a search over releases and a sentence or two."""
    if step.cannot_tell:
        return "cannot tell", f"It cannot be told: {step.cannot_tell}."
    text = f"The outcome changes between {step.before} and {step.after}"
    if step.between:
        text += f" (or in {', '.join(step.between)}, where it cannot be told)"
    mends = next((part for part in parts if part.name == "what mends it"), None)
    breaks = next((part for part in parts if part.name == "what breaks it"), None)
    told = []
    if mends and mends.verdict == "found":
        told.append(f"putting {named(mends.sets)} into {mends.where} mends it")
    if breaks and breaks.verdict == "found":
        told.append(f"taking {named(breaks.sets)} out of {breaks.where} breaks it")
    if len(told) == 2:
        return "found", f"{text}: {' and '.join(told)}."
    verdict = "cannot tell" if step.between else "found"
    rest = _unexplained(mends, breaks)
    if told:
        return verdict, f"{text}: {told[0]}; {rest}."
    suspects = f"; its traceback goes through {', '.join(step.suspects)}" if step.suspects else ""
    return verdict, (
        f"{text}. No toggle explains it: {rest}; {len(step.modules)} modules differ{suspects}."
    )


def _unexplained(mends: Part | None, breaks: Part | None) -> str:
    """What of the step the toggles do not account for."""
    said = []
    if mends is None:
        said.append("no fix that the failing side lacks can be put into it")
    elif mends.cannot_tell:
        said.append(f"what mends {mends.where} cannot be told: {mends.cannot_tell}")
    elif not mends.sets:
        said.append(f"on {mends.where} something else fails that no toggle mends")
    if breaks is None:
        said.append("no fix of the passing side that the other lacks can be taken out of it")
    elif breaks.cannot_tell:
        said.append(f"what breaks {breaks.where} cannot be told: {breaks.cannot_tell}")
    elif not breaks.sets:
        said.append(f"on {breaks.where} taking out what the other lacks changes nothing")
    return ", and ".join(said)
