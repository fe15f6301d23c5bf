"""A search as every report shows it: rows of runs over columns of toggles, and the culprits."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.outcomes import Verdict
from harness.core.wording import format_count
from harness.store.bisect.values import ANSWERS, BisectSearch, BisectTrial, ToggleSearch
from harness.store.prove.values import ToggleFacts

GLYPHS = {
    Verdict.PASSES: "✓",
    Verdict.FAILS: "✕",
    Verdict.CANNOT_TELL: "?",
    None: "~",
}
TONES = {
    Verdict.PASSES: "good",
    Verdict.FAILS: "broken",
    Verdict.CANNOT_TELL: "unreached",
    None: "toothless",
}
DIRECTION_VERBS = {"revert": "reverts it in", "enable": "applies it to"}
MAX_COLUMNS = 12  # toggles of a set that is small
PURPOSES = {
    "base": "nothing toggled",
    "search": "search",
    "proof": "proof",
    "again": "proof, again",
}


@dataclass(frozen=True)
class SearchRow:
    """The runs of one set of toggles for one purpose; a flaky symptom takes several."""

    number: int
    toggles: frozenset[str]
    why: str
    trials: list[BisectTrial]

    @property
    def first_trial(self) -> BisectTrial:
        return self.trials[0]

    @property
    def answer_counts(self) -> dict[Verdict, int]:
        return {
            answer: count
            for answer in ANSWERS
            if (count := sum(trial.answer is answer for trial in self.trials))
        }

    @property
    def answer(self) -> Verdict | None:
        """The answer of all the runs; None if they disagree."""
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
    def suspects(self) -> frozenset[str]:
        """The culprits, or the smallest set so far whose run shows the symptom."""
        shows = Verdict.FAILS if self.part.direction == "revert" else Verdict.PASSES
        shown = (row.toggles for row in self.rows if row.toggles and row.answer is shows)
        return self.culprits or min(shown, key=len, default=frozenset(self.part.toggles))

    @property
    def columns(self) -> list[str]:
        """The toggles with a column: of many, those that a small set of some run had."""
        toggles = self.part.toggles
        small = (row.toggles for row in self.rows if len(row.toggles) <= MAX_COLUMNS)
        kept = self.culprits.union(*small)
        few = [name for name in toggles if name in kept]
        return few if few and len(toggles) > MAX_COLUMNS else toggles

    @property
    def title(self) -> str:
        verb = "reverted in" if self.part.direction == "revert" else "applied to"
        return f"Fixes {verb} SGLang {self.part.where}"


@dataclass(frozen=True)
class HistoryStop:
    """One release or commit of a history, and the run of the command on it."""

    name: str
    trial: BisectTrial | None
    role: str  # before, after, between, ""


@dataclass(frozen=True)
class Culprit:
    """A culprit, and the diff that the search applied."""

    toggle: ToggleFacts
    patch: str
    patch_summary: str  # the direction of the diff, and its release


@dataclass(frozen=True)
class SearchView:
    search: BisectSearch
    parts: list[SearchPartView]
    stops: list[HistoryStop]
    culprits: list[Culprit]


def make_view(search: BisectSearch) -> SearchView:
    parts = []
    for part in search.toggle_searches:
        trials = [trial for trial in search.trials if trial.search_name == part.name]
        culprits = frozenset(name for names in part.minimal_sets for name in names)
        parts.append(SearchPartView(part, group_trials(trials), culprits))
    facts = {toggle.id: toggle for toggle in search.toggles}
    culprits_by_name = {
        name: Culprit(
            facts[name],
            text,
            f"the change that {DIRECTION_VERBS[part.direction]} SGLang {part.where}",
        )
        for part in search.toggle_searches
        for name, text in part.patches.items()
        if name in facts
    }
    return SearchView(search, parts, _list_stops(search), list(culprits_by_name.values()))


def describe_search(search_view: SearchView) -> str:
    """Describe the outcome in a sentence; of a search that was stopped, what it had found."""
    search = search_view.search
    if search.status == "finished" or not search_view.parts:
        return search.summary
    found = []
    for part in search_view.parts:
        names = sorted(part.suspects)
        some = f": {', '.join(names)}" if len(names) <= MAX_COLUMNS else ""
        among = "the culprits are" if part.culprits else "what shows the symptom is among"
        found.append(
            f"{among} {format_count(len(names), 'toggle')} on SGLang {part.part.where}{some}"
        )
    runs = format_count(len(search.trials), "run")
    return f"{search.status.capitalize()} after {runs}; {'; '.join(found)}"


def group_trials(trials: list[BisectTrial]) -> list[SearchRow]:
    """Group runs in their order; the runs of one set for one purpose share a row."""
    rows: dict[tuple[frozenset[str], str], SearchRow] = {}
    for number, trial in enumerate(trials, 1):
        key = frozenset(trial.toggles), trial.why
        rows.setdefault(key, SearchRow(number, key[0], trial.why, [])).trials.append(trial)
    return list(rows.values())


def _list_stops(search: BisectSearch) -> list[HistoryStop]:
    step = search.step
    if step is None:
        return []
    trials = {trial.where: trial for trial in search.trials if trial.search_name == search.kind}
    roles = {step.before: "before", step.after: "after", **dict.fromkeys(step.undecided, "between")}
    return [HistoryStop(name, trials.get(name), roles.get(name, "")) for name in step.revisions]
