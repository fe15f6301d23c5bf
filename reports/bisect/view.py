"""A search as every report shows it: rows of runs over columns of toggles, and who is to blame."""

from __future__ import annotations

from dataclasses import dataclass

from harness.store.bisect.values import Answer, Part, Search, Trial
from harness.store.prove.values import ToggleFacts

GLYPHS = {Answer.PASSES: "✓", Answer.FAILS: "✕", Answer.CANNOT_TELL: "?", None: "~"}
TONES = {
    Answer.PASSES: "good",
    Answer.FAILS: "broken",
    Answer.CANNOT_TELL: "unreached",
    None: "toothless",
}
VERBS = {"revert": "taking it out of", "enable": "putting it into"}
WHY = {"base": "nothing toggled", "search": "search", "proof": "proof", "again": "proof, again"}


@dataclass(frozen=True)
class Row:
    """The runs of one set, for one purpose: one, or many of a flaky symptom."""

    number: int
    toggles: frozenset[str]
    why: str
    trials: list[Trial]

    @property
    def first(self) -> Trial:
        return self.trials[0]

    @property
    def answers(self) -> dict[Answer, int]:
        return {
            answer: count
            for answer in Answer
            if (count := sum(trial.answer is answer for trial in self.trials))
        }

    @property
    def answer(self) -> Answer | None:
        """What they say; None if some say this and some that."""
        return self.first.answer if len(self.answers) == 1 else None

    @property
    def told(self) -> str:
        if len(self.trials) == 1:
            return self.first.how
        return ", ".join(f"{answer.value} {count}x" for answer, count in self.answers.items())

    @property
    def seconds(self) -> float:
        return sum(trial.seconds for trial in self.trials)


@dataclass(frozen=True)
class PartView:
    part: Part
    rows: list[Row]
    culprits: frozenset[str]

    @property
    def title(self) -> str:
        verb = "taken out of" if self.part.direction == "revert" else "put into"
        return f"Fixes {verb} SGLang {self.part.where}"


@dataclass(frozen=True)
class Stop:
    """One release or commit of a history, and what the command said on it."""

    name: str
    trial: Trial | None
    role: str  # before, after, between, ""


@dataclass(frozen=True)
class Blamed:
    """A culprit, and its diff as the search made it."""

    toggle: ToggleFacts
    patch: str
    does: str  # what the diff is of


@dataclass(frozen=True)
class SearchView:
    search: Search
    parts: list[PartView]
    stops: list[Stop]
    blamed: list[Blamed]


def make(search: Search) -> SearchView:
    parts = []
    for part in search.parts:
        trials = [trial for trial in search.trials if trial.part == part.name]
        culprits = frozenset(name for one in part.sets for name in one)
        parts.append(PartView(part, rows(trials), culprits))
    facts = {toggle.id: toggle for toggle in search.toggles}
    blamed = {
        name: Blamed(facts[name], text, f"what {VERBS[part.direction]} SGLang {part.where} does")
        for part in search.parts
        for name, text in part.patches.items()
        if name in facts
    }
    return SearchView(search, parts, _stops(search), list(blamed.values()))


def rows(trials: list[Trial]) -> list[Row]:
    """Runs in their order; those of a set that is run again and again in one row."""
    found: dict[tuple[frozenset[str], str], Row] = {}
    for number, trial in enumerate(trials, 1):
        key = frozenset(trial.toggles), trial.why
        if key in found:
            found[key].trials.append(trial)
        else:
            found[key] = Row(number, key[0], trial.why, [trial])
    return list(found.values())


def _stops(search: Search) -> list[Stop]:
    step = search.step
    if step is None:
        return []
    told = {t.where: t for t in search.trials if t.part == search.kind}
    roles = {step.before: "before", step.after: "after", **dict.fromkeys(step.between, "between")}
    return [Stop(name, told.get(name), roles.get(name, "")) for name in step.places]
