"""A search as every report shows it: rows of runs over columns of toggles, and who is to blame."""

from __future__ import annotations

from dataclasses import dataclass

from harness.store.bisect.values import BisectAnswer, BisectSearch, BisectTrial, ToggleSearch
from harness.store.prove.values import ToggleFacts

GLYPHS = {
    BisectAnswer.PASSES: "✓",
    BisectAnswer.FAILS: "✕",
    BisectAnswer.CANNOT_TELL: "?",
    None: "~",
}
TONES = {
    BisectAnswer.PASSES: "good",
    BisectAnswer.FAILS: "broken",
    BisectAnswer.CANNOT_TELL: "unreached",
    None: "toothless",
}
DIRECTION_VERBS = {"revert": "taking it out of", "enable": "putting it into"}
PURPOSES = {
    "base": "nothing toggled",
    "search": "search",
    "proof": "proof",
    "again": "proof, again",
}


@dataclass(frozen=True)
class SearchRow:
    """The runs of one set, for one purpose: one, or many of a flaky symptom."""

    number: int
    toggles: frozenset[str]
    why: str
    trials: list[BisectTrial]

    @property
    def first_trial(self) -> BisectTrial:
        return self.trials[0]

    @property
    def answer_counts(self) -> dict[BisectAnswer, int]:
        return {
            answer: count
            for answer in BisectAnswer
            if (count := sum(trial.answer is answer for trial in self.trials))
        }

    @property
    def answer(self) -> BisectAnswer | None:
        """What they say; None if some say this and some that."""
        return self.first_trial.answer if len(self.answer_counts) == 1 else None

    @property
    def outcome_text(self) -> str:
        if len(self.trials) == 1:
            return self.first_trial.how
        return ", ".join(f"{answer.value} {count}x" for answer, count in self.answer_counts.items())

    @property
    def seconds(self) -> float:
        return sum(trial.seconds for trial in self.trials)


@dataclass(frozen=True)
class SearchPartView:
    part: ToggleSearch
    rows: list[SearchRow]
    culprits: frozenset[str]

    @property
    def title(self) -> str:
        verb = "taken out of" if self.part.direction == "revert" else "put into"
        return f"Fixes {verb} SGLang {self.part.where}"


@dataclass(frozen=True)
class HistoryStop:
    """One release or commit of a history, and what the command said on it."""

    name: str
    trial: BisectTrial | None
    role: str  # before, after, between, ""


@dataclass(frozen=True)
class Culprit:
    """A culprit, and its diff as the search made it."""

    toggle: ToggleFacts
    patch: str
    patch_summary: str  # what the diff is of


@dataclass(frozen=True)
class SearchView:
    search: BisectSearch
    parts: list[SearchPartView]
    stops: list[HistoryStop]
    culprits: list[Culprit]


def make_view(search: BisectSearch) -> SearchView:
    parts = []
    for part in search.parts:
        trials = [trial for trial in search.trials if trial.part == part.name]
        culprits = frozenset(name for one in part.sets for name in one)
        parts.append(SearchPartView(part, group_trials(trials), culprits))
    facts = {toggle.id: toggle for toggle in search.toggles}
    blamed = {
        name: Culprit(
            facts[name], text, f"what {DIRECTION_VERBS[part.direction]} SGLang {part.where} does"
        )
        for part in search.parts
        for name, text in part.patches.items()
        if name in facts
    }
    return SearchView(search, parts, _list_stops(search), list(blamed.values()))


def group_trials(trials: list[BisectTrial]) -> list[SearchRow]:
    """Runs in their order; those of a set that is run again and again in one row."""
    found: dict[tuple[frozenset[str], str], SearchRow] = {}
    for number, trial in enumerate(trials, 1):
        key = frozenset(trial.toggles), trial.why
        if key in found:
            found[key].trials.append(trial)
        else:
            found[key] = SearchRow(number, key[0], trial.why, [trial])
    return list(found.values())


def _list_stops(search: BisectSearch) -> list[HistoryStop]:
    step = search.step
    if step is None:
        return []
    told = {t.where: t for t in search.trials if t.part == search.kind}
    roles = {step.before: "before", step.after: "after", **dict.fromkeys(step.between, "between")}
    return [HistoryStop(name, told.get(name), roles.get(name, "")) for name in step.places]
