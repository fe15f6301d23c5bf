"""All features of one row, each combination in a fork of its own.

The plain server's answers come first; its first tokens are those of the row's batch. Combinations
follow that have each feature, or each pair, and a combination that does not equal is made smaller
until each feature is needed for it. What is left is named, and later combinations avoid it.
Example: {page 16, chunk 8, FP8 cache} differs, so does {page 16, FP8 cache}, and neither alone: the
pair differs, and chunk 8 is covered by another combination.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.core.outcomes import Verdict
from harness.runs.zoo.architecture import Architecture
from harness.runs.zoo.feature_run import (
    NO_REPLAY,
    FeatureOutcome,
    FeatureRun,
    PlainAnswers,
    measure_logprobs,
)
from harness.runs.zoo.features import (
    STRENGTHS,
    Combination,
    FeatureAxes,
    choose_combinations,
    explain_absence,
)
from harness.store.zoo.values import ArchitectureResult, FeatureResult
from harness.workers.fork_lanes import compute_in_fork

PLAIN: Combination = frozenset()
BATCH_FILE = "batch.pt"  # the row's logits, how far rounding may move them, and its prompts


class FeatureForks:
    """The features of one row, after its claims."""

    def __init__(
        self,
        architecture: Architecture,
        folder: Path,
        model: Path,
        seconds: float,
        launch_checks: tuple[str, ...],
        wanted: str,
    ) -> None:
        self.architecture, self.folder, self.model = architecture, folder, model
        self.seconds, self.launch_checks = seconds, launch_checks
        self.wanted = wanted  # each, pairs, or combinations by name
        self.all_axes = FeatureAxes.read()
        self.axes = self.all_axes.select_for(architecture)
        self.batch, self.tolerance, self.prompts = torch.load(model / BATCH_FILE)
        self.plain: PlainAnswers | None = None
        self.results: dict[Combination, FeatureResult] = {}
        self.kernels: dict[str, int] = {}
        self.functions: dict[str, set[str]] = {}
        self._count = 0

    def add_to(self, row: ArchitectureResult) -> None:
        """Run all, and add what was found to the row's result."""
        self._run_plain()
        if self.plain is None:
            pass
        elif self.wanted in STRENGTHS:
            self._cover_tuples(STRENGTHS[self.wanted])
        else:
            self._run_chosen()
        for name in self.all_axes.features:
            if name not in self.axes.features and self.wanted in STRENGTHS:
                reason = self._explain_absence(name)
                self.results[frozenset({name})] = FeatureResult([name], Verdict.NA, reason)
        row.features = [self.results[key] for key in sorted(self.results, key=sorted)]
        for kernel, count in self.kernels.items():
            row.kernels[kernel] = row.kernels.get(kernel, 0) + count
        for module, names in self.functions.items():
            row.functions[module] = sorted(names | set(row.functions.get(module, [])))

    def _explain_absence(self, name: str) -> str:
        return explain_absence(self.all_axes.features[name], self.architecture)

    def _run_plain(self) -> None:
        outcome = self._run_fork(PLAIN)
        result = outcome.result
        if result.verdict is Verdict.EQUAL and not self.architecture.adapters:
            firsts = [
                torch.log_softmax(logits[0], -1)[: len(answer.logprobs[0])]
                for logits, answer in zip(self.batch, outcome.answers, strict=False)
            ]
            result.error = max(
                measure_logprobs(first.tolist(), answer.logprobs[0])
                for first, answer in zip(firsts, outcome.answers, strict=False)
            )
            result.tolerance = self.tolerance
            if result.error > self.tolerance:
                result.verdict = Verdict.DIFFERS
                result.headline = f"its first tokens are off by {result.error:.2g} from the row's"
        result.features = ["plain server"]
        self.results[PLAIN] = result
        if result.verdict is Verdict.EQUAL:
            self.plain = PlainAnswers(outcome.answers, self.tolerance)

    def _run_chosen(self) -> None:
        """Run the combinations that the user names, as they are."""
        for combination in choose_combinations(self.wanted):
            if stray := combination - self.axes.features.keys():
                reason = self._explain_absence(min(stray))
                result = FeatureResult(sorted(combination), Verdict.NA, reason)
            else:
                result = self._run_fork(combination).result
            self.results[combination] = result

    def _cover_tuples(self, strength: int) -> None:
        """Run combinations until each tuple of features is equal, or part of one that is not."""
        while True:
            for combination in self.axes.plan_combinations(strength):
                tuples = self.axes.list_covered(combination, strength)
                if all(features in self.results for features in tuples):
                    continue
                result = self._run_fork(combination).result
                if result.verdict is not Verdict.EQUAL:
                    smallest = result
                    if result.headline != NO_REPLAY:  # another batch alone may replay none
                        smallest = self._make_smaller(combination, result)
                    self.axes.refused[frozenset(smallest.features)] = smallest.headline
                    self.results[frozenset(smallest.features)] = smallest
                    break
                for features in tuples:
                    self.results.setdefault(
                        features,
                        FeatureResult(
                            sorted(features), Verdict.EQUAL, "", result.error, result.tolerance
                        ),
                    )
            else:
                return

    def _make_smaller(self, combination: Combination, result: FeatureResult) -> FeatureResult:
        """Leave out each feature without which it does not equal either."""
        for name in sorted(combination):
            fewer = frozenset(result.features) - {name}
            if not fewer:
                break
            without = self._run_fork(fewer).result
            if without.verdict is result.verdict:
                result = without
        return result

    def _run_fork(self, combination: Combination) -> FeatureOutcome:
        self._count += 1
        compute: Callable[[], Any] = partial(
            FeatureRun(
                *(self.architecture, self.axes, combination),
                *(self.model, self.prompts, self.launch_checks),
            ).run,
            self.plain,
        )
        folder = self.folder / f"features-{self._count}"
        outcome, end = compute_in_fork(folder, self.seconds, compute, FeatureOutcome)
        if outcome is None:
            result = FeatureResult(sorted(combination), Verdict.DIFFERS, end.words, detail=end.log)
            return FeatureOutcome(result)
        for kernel, count in outcome.kernels.items():
            self.kernels[kernel] = self.kernels.get(kernel, 0) + count
        for module, names in outcome.functions.items():
            self.functions.setdefault(module, set()).update(names)
        return outcome
