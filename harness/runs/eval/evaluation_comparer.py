"""Compares the served configurations of an evaluation, and judges its planted faults.

It starts no server: the evaluation has the answers, from servers or from a record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.matrices.schema import (
    EvaluationConfiguration,
    FaultPlacement,
    MatrixFile,
    is_same_but_toggles,
)
from harness.runs.eval import fault_evidence, server_comparison
from harness.runs.eval.configuration_checks import TRANSFORMERS_ENGINE
from harness.runs.eval.lm_eval_scorer import get_task_name
from harness.store.eval.values import (
    FAULT_SHOWING_VERDICTS,
    ComparisonResult,
    Evaluation,
    PlantedFault,
    ServedConfiguration,
)
from harness.store.record_files import read_record_text
from harness.workers.servers.adaptations import RANDOM_WEIGHTS

ReportProgress = Callable[[Evaluation, str], None]
# The reason why a fault cannot be planted in a configuration; '' if it can.
ExplainAbsence = Callable[[FaultPlacement, EvaluationConfiguration], str]


def name_fault_configuration(fault: FaultPlacement, configuration: EvaluationConfiguration) -> str:
    """Return the name under which a configuration is served with a fault."""
    return f"{configuration.name} {'without' if fault.revert else 'with'} {fault.toggle}"


class EvaluationComparer:
    """Fills `compared` and `faults` of an evaluation from its served configurations."""

    def __init__(
        self,
        matrix: MatrixFile,
        evaluation: Evaluation,
        explain_absence: ExplainAbsence,
        on_progress: ReportProgress = lambda evaluation, text: None,
    ) -> None:
        self.matrix = matrix
        self.evaluation = evaluation
        self.explain_absence = explain_absence
        self.on_progress = on_progress

    def compare_served(self) -> None:
        """Compare every configuration that was served, and judge every fault."""
        self.evaluation.compared, self.evaluation.faults = [], []
        served = {one.name for one in self.evaluation.served}
        for configuration in self.matrix.configurations:
            if {configuration.name, *configuration.base_names} <= served:
                for comparison in self._compare_configuration(configuration):
                    self._record_comparison(comparison)
        for fault in self.matrix.faults:
            for name in fault.where:
                configuration = self.matrix.find_configuration(name)
                served_as = name_fault_configuration(fault, configuration)
                absent = configuration.absent or self.explain_absence(fault, configuration)
                if absent or {name, served_as} <= served:
                    self.evaluation.faults.append(self._judge_fault(fault, configuration, absent))

    def _compare_configuration(
        self, configuration: EvaluationConfiguration
    ) -> list[ComparisonResult]:
        find = self.evaluation.find_configuration
        candidate = find(configuration.name)
        dtype = self.get_dtype(configuration)
        comparisons = []
        if configuration.like:
            same = is_same_but_toggles(
                configuration, self.matrix.find_configuration(configuration.like)
            )
            base = find(configuration.like)
            comparisons.append(self.compare_pair(base, candidate, "tokens", dtype, "", same))
        if configuration.against:
            base = find(configuration.against)
            for task in configuration.tasks or self.matrix.tasks:
                comparisons.append(
                    self.compare_pair(base, candidate, "accuracy", dtype, get_task_name(task))
                )
        return comparisons

    def compare_pair(
        self,
        base: ServedConfiguration,
        candidate: ServedConfiguration,
        kind: str,
        dtype: str,
        task: str = "",
        same_but_toggles: bool = False,
    ) -> ComparisonResult:
        """Compare two by tokens or accuracy; a failure of either is a verdict, too."""
        names = base.name, candidate.name, kind
        if absent := candidate.absent or base.absent:
            return ComparisonResult(*names, task, Verdict.NA, absent)
        if base.failure or candidate.failure or not (base.answers and candidate.answers):
            return server_comparison.make_failed_comparison(base, candidate, kind)
        if self._is_right_about_nothing(base, candidate):
            verdict = Verdict.CANNOT_TELL
            text = f"{verdict}: {base.name} answers none of these items rightly"
            return ComparisonResult(*names, task, verdict, text)
        try:
            if kind == "tokens":
                return server_comparison.compare_tokens(
                    base,
                    candidate,
                    dtype=dtype,
                    same_but_toggles=same_but_toggles,
                    float32_reference=self._find_float32_reference(base),
                    base_is_reference=self._is_reference(base),
                )
            return server_comparison.compare_accuracy(
                base,
                candidate,
                task,
                comparison_count=self.evaluation.cells,
                tolerance=self.matrix.tolerance,
            )
        except UnfixError as error:
            verdict = Verdict.CANNOT_TELL
            return ComparisonResult(*names, task, verdict, f"{verdict}: {error}")

    def _find_unplanted(self, served: ServedConfiguration) -> EvaluationConfiguration | None:
        """Find the configuration of the matrix that was served; None for one with a fault."""
        listed = self.matrix.configurations
        return next((each for each in listed if each.name == served.name), None)

    def _is_right_about_nothing(
        self, base: ServedConfiguration, candidate: ServedConfiguration
    ) -> bool:
        """Return whether neither knows an answer, though its weights were trained for some."""
        configuration = self._find_unplanted(base)
        if configuration is not None and RANDOM_WEIGHTS in configuration.stand_ins:
            return False
        return all(answer.right is False for answer in [*base.answers, *candidate.answers])

    def _find_float32_reference(self, base: ServedConfiguration) -> ServedConfiguration | None:
        """Return the same model in plain transformers, if the base is compared with it."""
        configuration = self._find_unplanted(base)
        for name in configuration.base_names if configuration is not None else []:
            other = self.matrix.find_configuration(name)
            if other.engine == TRANSFORMERS_ENGINE and other.model == base.model:
                return self.evaluation.find_configuration(name)
        return None

    def _is_reference(self, base: ServedConfiguration) -> bool:
        """Return whether the configuration is plain transformers in float32."""
        configuration = self._find_unplanted(base)
        return configuration is not None and configuration.engine == TRANSFORMERS_ENGINE

    def get_dtype(self, configuration: EvaluationConfiguration) -> str:
        return configuration.dtype or self.matrix.dtype or "bfloat16"

    def _record_comparison(self, comparison: ComparisonResult) -> None:
        self.evaluation.compared.append(comparison)
        pair = f"{comparison.base} -> {comparison.candidate}"
        self.on_progress(self.evaluation, f"{pair} {comparison.task}: {comparison.words}")

    # Faults

    def _judge_fault(
        self, fault: FaultPlacement, configuration: EvaluationConfiguration, absent: str
    ) -> PlantedFault:
        """Judge whether a fault was caught: by a verdict, and only if its code ran."""
        name, served_as = configuration.name, name_fault_configuration(fault, configuration)
        must_catch = fault.expect == "caught"
        if absent:
            return PlantedFault(fault.toggle, name, served_as, False, False, [], "", absent=absent)
        base = self.evaluation.find_configuration(name)
        if base.failure or not base.answers:
            reason = f"{name} was not served: {base.failure or 'no answers'}"
            return PlantedFault(fault.toggle, name, served_as, False, False, [], "", absent=reason)
        served = self.evaluation.find_configuration(served_as)
        dtype = self.get_dtype(configuration)
        tokens = self.compare_pair(base, served, "tokens", dtype, same_but_toggles=True)
        accuracy = self.compare_pair(base, served, "accuracy", dtype)
        caught_by = []
        for comparison in (tokens, accuracy):
            self._record_comparison(comparison)
            if comparison.verdict in FAULT_SHOWING_VERDICTS:
                what = comparison.task.removeprefix("unfix_") or comparison.kind
                caught_by.append(f"{what}: {comparison.verdict.value}")
        reach = served.reach.get(fault.toggle, 0)
        if not reach:
            caught_by = []  # code that never ran causes no difference
            symptom = "nothing of it: its code never ran"
        elif served.failure:
            symptom = "crash"
        elif any(answer.error for answer in served.answers):
            symptom = "errors"
        elif accuracy.lost:
            symptom = "wrong answers"
        elif Verdict.DIFFERS in (tokens.verdict, accuracy.verdict):
            symptom = "other words"
        else:
            symptom = "nothing"
        by = list(dict.fromkeys(caught_by))
        unconfirmed = ""
        if by:
            is_failing = partial(self._is_failing, dtype, self._drifts_alone(tokens, accuracy))
            unconfirmed = fault_evidence.explain_unconfirmed(base, served, is_failing)
        is_caught = bool(by) and not unconfirmed
        return PlantedFault(
            *(fault.toggle, name, served_as, must_catch, is_caught, by, symptom, reach),
            unconfirmed=unconfirmed,
        )

    @staticmethod
    def _drifts_alone(tokens: ComparisonResult, accuracy: ComparisonResult) -> bool:
        """Return whether nothing differs but how sure the same tokens are."""
        is_drift = tokens.verdict is Verdict.DRIFTS
        return is_drift and not (accuracy.lost or accuracy.errors)

    def _is_failing(
        self,
        dtype: str,
        is_seen_by_drift: bool,
        base: ServedConfiguration,
        repeated: ServedConfiguration,
    ) -> bool:
        """Return whether a repeated run over some items differs from the run without the fault.

        A repetition runs in other batches, whose rounding may move a margin beyond the noise that
        the first run measured. Such a drift counts only for a fault that nothing else showed.
        """
        tokens = self.compare_pair(base, repeated, "tokens", dtype, same_but_toggles=True)
        accuracy = self.compare_pair(base, repeated, "accuracy", dtype)
        if self._drifts_alone(tokens, accuracy):
            return is_seen_by_drift
        return tokens.verdict in FAULT_SHOWING_VERDICTS or bool(accuracy.lost or accuracy.errors)


# Records


def read_recorded_evaluation(file: Path) -> Evaluation:
    """Return the evaluation of a file that `--record` wrote."""
    try:
        values = json.loads(read_record_text(file))
        for computed in ("green", "problems"):
            values.pop(computed, None)
        return msgspec.convert(values, Evaluation)
    except (ValueError, AttributeError, TypeError) as error:
        raise UnfixError(f"{file} is no record of an evaluation: {error}") from error


def rejudge_recorded(matrix: MatrixFile, recorded: Evaluation) -> Evaluation:
    """Compare recorded answers by today's statistics, without a server."""
    names = {one.name for one in recorded.served}
    missing = [one.name for one in matrix.configurations if one.name not in names]
    if missing:
        raise UnfixError(f"the record has no {', '.join(missing)}: was it of this matrix?")
    absences = {(fault.toggle, fault.configuration): fault.absent for fault in recorded.faults}

    def explain_absence(fault: FaultPlacement, configuration: EvaluationConfiguration) -> str:
        unplanted = "it was not planted when this was served"
        return absences.get((fault.toggle, configuration.name), unplanted)

    for index, served in enumerate(recorded.served):
        absent = next(
            (
                configuration.absent
                for configuration in matrix.configurations
                if configuration.name == served.name
            ),
            "",
        )
        if absent and not served.answers:  # the matrix file marks it absent since the record
            recorded.served[index] = msgspec.structs.replace(served, failure="", absent=absent)
    EvaluationComparer(matrix, recorded, explain_absence).compare_served()
    return recorded
