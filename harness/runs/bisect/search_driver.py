"""Drives a search: it turns questions into runs, stores each run, and sums up the result.

A strategy (`halving_search`, `bayesian_search`) is a generator of batches of questions; a runner
(`command_runner`, `guard_runner`) executes jobs. The driver connects the two: it answers from
the trials of a resumed or replayed search first, and runs only the rest. So the trials of a search
in their order are a log from which the same search follows again without a single run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.fixes.patch_plan import Direction
from harness.runs.bisect import search_questions
from harness.runs.bisect.bayesian_search import BayesianSearch
from harness.runs.bisect.halving_search import HalvingSearch
from harness.runs.bisect.search_questions import NO_TOGGLES, SearchQuestion, SearchResult, ToggleIds
from harness.runs.bisect.toggle_candidates import ToggleCandidates
from harness.runs.bisect.trial_runner import TrialJob, TrialRunner, VersionUnderTest
from harness.store.bisect.values import BisectSearch, BisectTrial, ToggleSearch

T = TypeVar("T")
OUTPUT_LINES_SHOWN = 40  # lines of a failing command's output in an error
TOGGLES_NOT_APPLIED = "no process that imports SGLang applied its toggles"
BASE_RUNS_WHEN_FLAKY = 3  # runs without toggles, before a flaky search begins


class SearchListener:
    """Receives the events of a search; the base class ignores them."""

    def report_part(self, part: ToggleSearch, usual_runs: int) -> None: ...

    def report_trial(self, trial: BisectTrial, number: int) -> None: ...


class TrialLog(Protocol):
    """Stores each trial as it ends."""

    def save_trial(self, search_id: str, number: int, trial: BisectTrial) -> None: ...


class SearchDriver:
    """One search with its numbered trials."""

    def __init__(
        self,
        search: BisectSearch,
        runner: TrialRunner,
        log: TrialLog | None = None,
        listener: SearchListener | None = None,
    ) -> None:
        self.search = search
        self.runner = runner
        self.log = log
        self.listener = listener or SearchListener()
        # Trials of a resumed search answer before anything is run.
        self._earlier_trials: dict[tuple[str, str, ToggleIds, str], deque[BisectTrial]] = (
            defaultdict(deque)
        )
        for trial in search.trials:
            self._earlier_trials[make_trial_key(trial)].append(trial)
        self._stored_count = len(search.trials)
        search.trials = []

    def run_batch(
        self,
        version: VersionUnderTest,
        candidates: ToggleCandidates,
        search_name: str,
        batch: list[SearchQuestion],
    ) -> list[BisectTrial]:
        """Return one trial for each question, from the log or run now."""
        trials: dict[int, BisectTrial] = {}
        jobs: list[tuple[int, TrialJob]] = []
        for index, question in enumerate(batch):
            known = self._earlier_trials[search_name, version.name, question.toggles, question.why]
            if known:
                trials[index] = known.popleft()
                self.record_trial(trials[index], is_new=False)
                continue
            toggles = tuple(candidates.universe.sort_toggles(question.toggles))
            choices = candidates.make_choices(question.toggles)
            jobs.append((index, TrialJob(version, toggles, choices, question.why)))
        for place, trial in self.runner.run([job for _, job in jobs]):
            trial.search_name = search_name
            trials[jobs[place][0]] = trial
            self.record_trial(trial, is_new=True)
        return [trials[index] for index in range(len(batch))]

    def record_trial(self, trial: BisectTrial, is_new: bool = True) -> None:
        self.search.trials.append(trial)
        if is_new:
            self._stored_count += 1
            if self.log:
                self.log.save_trial(self.search.id, self._stored_count, trial)
        self.listener.report_trial(trial, len(self.search.trials))

    def take_earlier_trials(self) -> list[BisectTrial]:
        """Take all earlier trials, for a search with its own lookup."""
        known = [trial for trials in self._earlier_trials.values() for trial in trials]
        self._earlier_trials.clear()
        return known

    # Toggles

    def search_toggles(
        self,
        version: VersionUnderTest,
        candidates: ToggleCandidates,
        *,
        name: str = "toggles",
        base_is_known: bool = False,  # the outcome without toggles is known
        find_all: bool = False,
        repeat: int = 1,
        confidence: float = 0.99,
    ) -> ToggleSearch:
        """Find the culprits among the candidates, after a check of the runs without toggles."""
        everything = candidates.make_choices(frozenset(candidates.universe.toggles))
        refused = self.runner.find_unfit_toggles(version, everything)
        candidates = candidates.drop_refused(refused)
        part = candidates.make_toggle_search(name, version.name)
        part.refused = refused
        self.search.toggle_searches.append(part)
        base_runs = 1 if self.runner.is_deterministic else 3
        self.listener.report_part(
            part,
            0
            if repeat > 1
            else estimate_runs(candidates, self.runner.jobs, find_all, base_runs)[1],
        )

        def ask(batch: list[SearchQuestion]) -> list[search_questions.SearchAnswer]:
            trials = self.run_batch(version, candidates, name, batch)
            if all(TOGGLES_NOT_APPLIED in trial.how for trial in trials):
                raise UnfixError(
                    f"with the requested toggles, the command came to: {trials[0].how} (is SGLang "
                    f"imported, by a Python that heeds PYTHONPATH?){format_output_tail(trials[0])}"
                )
            return [_answer_from_trial(trial, candidates.direction) for trial in trials]

        if not base_is_known:
            self._run_base(version, candidates, name, repeat)
        result = SearchResult()
        if candidates.universe.toggles and repeat > 1:
            bayesian = BayesianSearch(
                candidates.universe,
                repeat,
                confidence,
                toggles_cause_event=candidates.direction is Direction.REVERT,
                jobs=self.runner.jobs,
                find_all=find_all,
            )
            result = drive_search(bayesian.search(), ask)
        elif candidates.universe.toggles:
            halving = HalvingSearch(
                candidates.universe,
                self.runner.jobs,
                find_all,
                confirm_twice=not self.runner.is_deterministic,
            )
            result = drive_search(halving.search(), ask)
            self._check_base_again(result, version, candidates, name)
        _fill_toggle_search(part, result, candidates)
        return part

    def _run_base(
        self, version: VersionUnderTest, candidates: ToggleCandidates, search_name: str, repeat: int
    ) -> None:
        """Check that runs without toggles have the outcome that the search changes."""
        times = BASE_RUNS_WHEN_FLAKY if repeat > 1 else 1 if self.runner.is_deterministic else 2
        trials: list[BisectTrial] = []
        while len(trials) < times:
            # The first run goes alone, since it reveals most wrong calls.
            count = 1 if not trials else times - len(trials)
            trials += self.run_batch(
                version, candidates, search_name, [SearchQuestion(NO_TOGGLES, "base")] * count
            )
            self._check_base_outcome(trials, candidates.direction, version, repeat)

    def _check_base_outcome(
        self,
        trials: list[BisectTrial],
        direction: Direction,
        version: VersionUnderTest,
        repeat: int,
    ) -> None:
        last = trials[-1]
        on = f"on {version.name} with nothing toggled"
        if last.answer is Verdict.CANNOT_TELL:
            raise UnfixError(f"{on} the outcome is unknown: {last.how}{format_output_tail(last)}")
        wanted = Verdict.PASSES if direction is Direction.REVERT else Verdict.FAILS
        if len({trial.answer for trial in trials}) > 1:
            if repeat == 1:
                both = " and ".join(dict.fromkeys(trial.how for trial in trials))
                raise UnfixError(
                    f"{on} its outcome changes by itself ({both}): --repeat N searches a "
                    f"symptom that does not show each time{format_output_tail(last)}"
                )
        elif last.answer is not wanted and (repeat == 1 or len(trials) == BASE_RUNS_WHEN_FLAKY):
            other = (
                "the command fails already: repair it, or if that is the symptom, --enable finds "
                "the fixes that are missing"
                if direction is Direction.REVERT
                else "the command passes already; without --enable, the fixes are found whose "
                "absence makes it fail"
            )
            raise UnfixError(f"{on} {other} ({last.how}){format_output_tail(last)}")

    def _check_base_again(
        self,
        result: SearchResult,
        version: VersionUnderTest,
        candidates: ToggleCandidates,
        search_name: str,
    ) -> None:
        """Run once more without toggles, unless runs are deterministic."""
        if self.runner.is_deterministic or not result.minimal_sets or result.cannot_tell:
            return
        (trial,) = self.run_batch(
            version, candidates, search_name, [SearchQuestion(NO_TOGGLES, "proof")]
        )
        if _answer_from_trial(trial, candidates.direction).shows_symptom is not False:
            result.cannot_tell = (
                f"with nothing toggled it came out in two ways ({trial.how} at the end): "
                "--repeat N searches such a symptom"
            )


def drive_search(
    search: search_questions.QuestionGenerator[T],
    ask: Callable[[list[SearchQuestion]], list[search_questions.SearchAnswer]],
) -> T:
    """Answer the questions of a search until it returns its result."""
    try:
        batch = next(search)
        while True:
            batch = search.send(ask(batch))
    except StopIteration as stopped:
        result: T = stopped.value
        return result


def make_trial_key(trial: BisectTrial) -> tuple[str, str, ToggleIds, str]:
    return trial.search_name, trial.where, frozenset(trial.toggles), trial.why


def format_output_tail(trial: BisectTrial) -> str:
    """Return the end of a command's output."""
    if not trial.output:
        return ""
    lines = trial.output.splitlines()
    cut = (
        f"… {len(lines) - OUTPUT_LINES_SHOWN} lines before these\n"
        if len(lines) > OUTPUT_LINES_SHOWN
        else ""
    )
    return f"\n{cut}" + "\n".join(lines[-OUTPUT_LINES_SHOWN:])


def _answer_from_trial(trial: BisectTrial, direction: Direction) -> search_questions.SearchAnswer:
    if trial.answer is Verdict.CANNOT_TELL:
        return search_questions.SearchAnswer(None)
    wanted = Verdict.FAILS if direction is Direction.REVERT else Verdict.PASSES
    ran = None
    if trial.reach_by_toggle is not None:
        ran = frozenset(name for name, count in trial.reach_by_toggle.items() if count)
    return search_questions.SearchAnswer(trial.answer is wanted, ran)


def _fill_toggle_search(
    toggle_search: ToggleSearch, result: SearchResult, candidates: ToggleCandidates
) -> None:
    toggle_search.minimal_sets = [
        candidates.universe.sort_toggles(one) for one in result.minimal_sets
    ]
    toggle_search.others_show_symptom = result.others_show_symptom
    toggle_search.confidence, toggle_search.least_detectable_rate = (
        result.confidence,
        result.least_detectable_rate,
    )
    toggle_search.cannot_tell = result.cannot_tell
    toggle_search.patches = {
        name: candidates.format_patch(name) for one in toggle_search.minimal_sets for name in one
    }
    toggle_search.done = True


def estimate_runs(
    candidates: ToggleCandidates, jobs: int, find_all: bool, base_runs: int
) -> tuple[int, int]:
    """Return the most and the mean number of runs, over each candidate as the only culprit."""
    runs = []
    for culprit in candidates.universe.toggles:
        questions: list[SearchQuestion] = []

        def ask(
            batch: list[SearchQuestion],
            culprit: str = culprit,
            questions: list[SearchQuestion] = questions,
        ) -> list[search_questions.SearchAnswer]:
            questions += batch
            return [
                search_questions.SearchAnswer(culprit in question.toggles) for question in batch
            ]

        drive_search(
            HalvingSearch(
                candidates.universe, jobs, find_all, confirm_twice=base_runs > 1
            ).search(),
            ask,
        )
        runs.append(len(questions) + base_runs)
    return max(runs, default=base_runs), round(sum(runs) / len(runs)) if runs else base_runs


def format_sets(sets: list[list[str]]) -> str:
    return "; ".join(" together with ".join(names) for names in sets)


def summarize_toggle_search(result: ToggleSearch) -> str:
    """Summarize a search over toggles in one sentence."""
    makes, changed = ("fail", "taken out") if result.direction == "revert" else ("pass", "put in")
    if result.cannot_tell:
        return f"The search cannot tell: {result.cannot_tell}."
    if not result.minimal_sets:
        return _summarize_no_culprit(result, makes, changed)
    several = len(result.minimal_sets) > 1 or len(result.minimal_sets[0]) > 1
    sure = f", at {result.confidence:.1%} confidence" if result.confidence is not None else ""
    they_make = "they make" if several else "it makes"
    text = f"{format_sets(result.minimal_sets)}: {changed}, {they_make} it {makes}{sure}"
    if result.others_show_symptom:
        text += "; so do others (--all finds them)"
    elif result.others_show_symptom is None:
        text += "; the outcome with all the others is unknown"
    elif len(result.toggles) > sum(map(len, result.minimal_sets)):
        text += "; all the others do not"
    return text + "."


def _summarize_no_culprit(result: ToggleSearch, makes: str, changed: str) -> str:
    if not result.toggles:
        return f"No toggle can be {changed} on {result.where}."
    none = f"None of {len(result.toggles)} toggles"
    if result.confidence is not None and result.least_detectable_rate is not None:
        return (
            f"{none} makes it {makes} in more than {result.least_detectable_rate:.1%} of the runs "
            f"when {changed} on {result.where}, at {result.confidence:.1%} confidence."
        )
    return f"{none}, alone or all together, makes it {makes} when {changed} on {result.where}."
