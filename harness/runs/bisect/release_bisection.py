"""A search over releases: the step where the outcome changes, and the toggles that explain it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import Direction
from harness.fixes.registry.schema import Toggle
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.releases.source_trees import SGLANG_PACKAGE, SourceTree
from harness.runs.bisect.search_driver import SearchDriver, format_output_tail, format_sets
from harness.runs.bisect.search_questions import NO_TOGGLES, SearchQuestion, ToggleUniverse
from harness.runs.bisect.toggle_candidates import (
    ToggleCandidates,
    resolve_pinned_choices,
    select_candidates,
)
from harness.runs.bisect.trial_runner import VersionUnderTest
from harness.store.bisect.values import BisectStep, BisectTrial, ToggleSearch

_TRACEBACK_FRAME = re.compile(rf'File "(?:[^"]*/)?({SGLANG_PACKAGE}/[^"]+)\.py"')


@dataclass(frozen=True)
class ReleaseSeries:
    """Releases from the oldest to the newest, and a function that prepares one."""

    names: list[str]
    prepare_version: Callable[[str], VersionUnderTest]


def check_ends_differ(good: BisectTrial, bad: BisectTrial) -> None:
    """Refuse ends of the search whose outcomes are not those that the caller claims."""
    for trial, name in ((good, "good"), (bad, "bad")):
        if trial.answer is Verdict.CANNOT_TELL:
            raise UnfixError(
                f"--{name} {trial.where}: cannot tell: {trial.how}{format_output_tail(trial)}"
            )
    if (good.answer, bad.answer) == (Verdict.FAILS, Verdict.PASSES):
        raise UnfixError(
            f"the wrong way round: it fails on --good {good.where} ({good.how}) and passes on "
            f"--bad {bad.where}; say --good {bad.where} --bad {good.where}"
        )
    if good.answer == bad.answer:
        verb = "passes" if good.answer is Verdict.PASSES else "fails"
        raise UnfixError(
            f"nothing changes between them: it {verb} on {good.where} and on {bad.where} "
            f"({bad.how}){format_output_tail(bad)}"
        )


class ReleaseBisection:
    """A search over releases: the step first, then the toggles on its two sides."""

    def __init__(
        self,
        driver: SearchDriver,
        series: ReleaseSeries,
        toggles: list[Toggle],
        catalogue: ToggleCatalogue,
        pinned_toggles: dict[str, str],
    ) -> None:
        self.driver = driver
        self.series = series
        self.toggles = toggles
        self.catalogue = catalogue
        self.pinned_toggles = pinned_toggles

    def run(self, good: str, bad: str, *, find_all: bool = False) -> BisectStep:
        ends = [self._run_release(good), self._run_release(bad)]
        check_ends_differ(*ends)
        step = BisectStep(self.series.names)
        self.driver.search.step = step
        trials = {trial.where: trial for trial in ends}
        self._halve_releases(step, trials)
        if step.cannot_tell:
            return step
        self._confirm_step(step, trials)
        if not step.cannot_tell:
            self._explain_step(step, trials, find_all)
        return step

    def _run_release(self, name: str, why: str = "search") -> BisectTrial:
        version = self.series.prepare_version(name)
        no_candidates = ToggleCandidates(
            Direction.REVERT,
            {},
            ToggleUniverse(()),
            {},
            resolve_pinned_choices(self.pinned_toggles, self.catalogue, version.tree),
            version.tree,
        )
        (trial,) = self.driver.run_batch(
            version, no_candidates, "releases", [SearchQuestion(NO_TOGGLES, why)]
        )
        return trial

    def _halve_releases(self, step: BisectStep, trials: dict[str, BisectTrial]) -> None:
        names = step.revisions
        low, high = 0, len(names) - 1
        first = trials[names[0]].answer
        inconclusive: set[int] = set()
        while True:
            middle = (low + high) / 2
            inside = [i for i in range(low + 1, high) if i not in inconclusive]
            if not inside:
                break
            at = min(inside, key=lambda i: (abs(i - middle), i))
            trial = trials[names[at]] = self._run_release(names[at])
            if trial.answer is Verdict.CANNOT_TELL:
                inconclusive.add(at)
            elif trial.answer is first:
                low = at
            else:
                high = at
        step.before, step.after = names[low], names[high]
        step.undecided = [names[i] for i in range(low + 1, high)]

    def _confirm_step(self, step: BisectStep, trials: dict[str, BisectTrial]) -> None:
        """Run both sides of the step once more, unless runs are deterministic."""
        if self.driver.runner.is_deterministic:
            return
        for name in (step.before, step.after):
            again = self._run_release(name, "proof")
            if again.answer is not trials[name].answer:
                step.cannot_tell = (
                    f"on {name} it came out in two ways ({trials[name].how}, then {again.how})"
                )
                return

    # The toggles that explain the step

    def _explain_step(
        self, step: BisectStep, trials: dict[str, BisectTrial], find_all: bool
    ) -> None:
        passes, fails = step.before, step.after
        if trials[passes].answer is Verdict.FAILS:
            passes, fails = fails, passes
        passing, failing = self.series.prepare_version(passes), self.series.prepare_version(fails)
        states = {
            toggle.id: (
                find_toggle_status(toggle, passing.tree).state,
                find_toggle_status(toggle, failing.tree).state,
            )
            for toggle in self.toggles
        }
        older, newer = (0, 1) if step.before == passes else (1, 0)
        step.changed = [
            f"{name}: {both[older].value} → {both[newer].value}"
            for name, both in states.items()
            if both[0] is not both[1]
        ]
        changed = [toggle for toggle in self.toggles if len(set(states[toggle.id])) > 1]
        step.modules = find_differing_modules(passing.tree, failing.tree)
        step.suspects = find_suspect_modules(trials[fails], step.modules)
        if any(states[toggle.id][1] is ToggleState.BUGGY for toggle in changed):
            self._search_toggles("what mends it", failing, Direction.ENABLE, changed, find_all)
        if any(states[toggle.id][0] is ToggleState.FIXED for toggle in changed):
            self._search_toggles("what breaks it", passing, Direction.REVERT, changed, find_all)

    def _search_toggles(
        self,
        name: str,
        version: VersionUnderTest,
        direction: Direction,
        toggles: list[Toggle],
        find_all: bool,
    ) -> None:
        chosen = select_candidates(
            toggles, direction, version.tree, self.catalogue, self.pinned_toggles
        )
        self.driver.search_toggles(
            version, chosen, name=name, find_all=find_all, base_is_known=True
        )


def find_differing_modules(tree: SourceTree, other_tree: SourceTree) -> list[str]:
    """Find the modules whose text differs, or that only one tree has."""
    first, second = set(tree.modules()), set(other_tree.modules())
    found = first ^ second
    for module in first & second:
        texts = [source and source.text for source in (tree.read(module), other_tree.read(module))]
        if texts[0] != texts[1]:
            found.add(module)
    return sorted(found)


def find_suspect_modules(failing_trial: BisectTrial, modules: list[str]) -> list[str]:
    """Find the differing modules in the failing run's traceback."""
    named = {frame.replace("/", ".") for frame in _TRACEBACK_FRAME.findall(failing_trial.output)}
    return sorted(named & set(modules))


def summarize_release_search(step: BisectStep, parts: list[ToggleSearch]) -> tuple[str, str]:
    """Return the verdict of a search over releases, and its summary."""
    if step.cannot_tell:
        return "cannot tell", f"The search cannot tell: {step.cannot_tell}."
    text = f"The outcome changes between {step.before} and {step.after}"
    if step.undecided:
        text += f" (or in {', '.join(step.undecided)}, which gave no answer)"
    mends = next((part for part in parts if part.name == "what mends it"), None)
    breaks = next((part for part in parts if part.name == "what breaks it"), None)
    explanations = []
    if mends and mends.verdict == "found":
        explanations.append(
            f"putting {format_sets(mends.minimal_sets)} into {mends.where} mends it"
        )
    if breaks and breaks.verdict == "found":
        explanations.append(
            f"taking {format_sets(breaks.minimal_sets)} out of {breaks.where} breaks it"
        )
    if len(explanations) == 2:
        return "found", f"{text}: {' and '.join(explanations)}."
    verdict = "cannot tell" if step.undecided else "found"
    rest = _describe_unexplained(mends, breaks)
    if explanations:
        return verdict, f"{text}: {explanations[0]}; {rest}."
    suspects = f"; its traceback goes through {', '.join(step.suspects)}" if step.suspects else ""
    return verdict, (
        f"{text}. No toggle explains it: {rest}; {len(step.modules)} modules differ{suspects}."
    )


def _describe_unexplained(mends: ToggleSearch | None, breaks: ToggleSearch | None) -> str:
    """Describe the sides of the step that no toggle explains."""
    reasons = []
    if mends is None:
        reasons.append("no fix that the failing side lacks can be put into it")
    elif mends.cannot_tell:
        reasons.append(f"what mends {mends.where} is unknown: {mends.cannot_tell}")
    elif not mends.minimal_sets:
        reasons.append(f"on {mends.where} something else fails that no toggle mends")
    if breaks is None:
        reasons.append("no fix of the passing side that the other lacks can be taken out of it")
    elif breaks.cannot_tell:
        reasons.append(f"what breaks {breaks.where} is unknown: {breaks.cannot_tell}")
    elif not breaks.minimal_sets:
        reasons.append(f"on {breaks.where} taking out what the other lacks changes nothing")
    return ", and ".join(reasons)
