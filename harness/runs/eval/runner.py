"""Runs an evaluation: serves every configuration, compares them, and sends more items in doubt.

A configuration is served after the base of its accuracy, and gets its items batch by batch until
the verdict is clear. With 200 items in batches of 50, a candidate that loses 13 of the first 50 is
`regressed` and gets no further items.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus, Verdict
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.registry import toggle_catalogue
from harness.matrices.schema import EvaluationConfiguration, FaultPlacement, MatrixFile
from harness.releases import managed_releases
from harness.runs.eval import fault_evidence, paired_statistics, power_analysis
from harness.runs.eval.configuration_checks import TRANSFORMERS_ENGINE
from harness.runs.eval.evaluation_comparer import (
    EvaluationComparer,
    ReportProgress,
    name_fault_configuration,
)
from harness.runs.eval.evaluation_servers import EvaluationServers
from harness.runs.eval.fault_evidence import ItemsByTask
from harness.runs.eval.lm_eval_scorer import get_task_name
from harness.runs.eval.serving_job import ServingJob, ServingSettings
from harness.store.eval.values import Evaluation, ServedConfiguration
from harness.workers.servers.adaptations import CHECKED_KERNELS, RANDOM_WEIGHTS

MAX_REPEATED_ITEMS = 16  # most items of a task that a base gets twice


def request_nothing(served: ServedConfiguration) -> ItemsByTask:
    """Request no further items: the configuration ends after its first batch."""
    return {}


class EvaluationRunner:
    """One evaluation of a matrix."""

    def __init__(
        self,
        matrix: MatrixFile,
        settings: ServingSettings,
        evaluation: Evaluation,
        *,
        jobs: int,
        max_items: int = paired_statistics.MAX_ITEMS,
        on_progress: ReportProgress = lambda evaluation, text: None,
    ) -> None:
        self.matrix = matrix
        self.settings = settings
        self.evaluation = evaluation
        self.jobs = jobs
        self.max_items = max_items
        self.on_progress = on_progress
        self.servers = EvaluationServers(settings, matrix.seed, jobs)
        self.comparer = EvaluationComparer(matrix, evaluation, self._explain_absence, on_progress)
        self._planted_items: dict[str, ItemsByTask] = {}  # by the name of a served fault
        self._toggles = toggle_catalogue.load_catalogue(settings.toggles)
        for fault in matrix.faults:
            self._toggles.select(fault.toggle)  # raises for an unknown toggle before anything runs

    def execute(self) -> Evaluation:
        started = time.monotonic()
        try:
            self._serve_configurations()
            self.comparer.compare_served()
            self._resolve_doubts()
            self.servers.close()
            self.evaluation.status = RunStatus.FINISHED
        except BaseException as stop:
            self.evaluation.status = RunStatus.STOPPED
            self._run_after_stop(stop, self.servers.close)
            self._run_after_stop(stop, self.comparer.compare_served)
            raise
        finally:
            self.evaluation.seconds = time.monotonic() - started
        return self.evaluation

    def _run_after_stop(self, stop: BaseException, cleanup: Callable[[], None]) -> None:
        """Add an error of the cleanup as a note to the exception that stopped the run."""
        try:
            cleanup()
        except Exception as error:
            stop.add_note(f"and then {type(error).__name__}: {error}")

    # Serving

    def _serve_configurations(self) -> None:
        """Serve faults first, which wait for no base, then each configuration after its base."""
        waiting = [
            self._make_job(configuration, fault)
            for fault in self.matrix.faults
            for configuration in map(self.matrix.find_configuration, fault.where)
            if not configuration.absent and not self._explain_absence(fault, configuration)
        ]
        self._planted_items = {job.name: job.items_by_task for job in waiting}
        planted = set(self._planted_items)
        waiting += [self._make_job(configuration) for configuration in self.matrix.configurations]
        served_order = [one.name for one in self.matrix.configurations]
        served_order += [job.name for job in reversed(waiting)]
        running: dict[concurrent.futures.Future[ServedConfiguration], ServingJob] = {}
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            try:
                while waiting or running:
                    done = {served.name for served in self.evaluation.served}
                    for job in list(waiting):
                        if self._list_prerequisites(job, planted) <= done:
                            waiting.remove(job)
                            job.fault_items = self._choose_fault_items(job)
                            running[pool.submit(self._serve_job, job)] = job
                    if not running:
                        raise UnfixError(f"the base of {waiting[0].name} is not served")
                    finished, _ = concurrent.futures.wait(
                        running, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    for future in finished:
                        served = future.result()
                        del running[future]
                        self.evaluation.served.append(served)
                        self.on_progress(self.evaluation, _summarize_served(served))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.servers.stop()
                raise
        self.evaluation.served.sort(key=lambda served: served_order.index(served.name))

    def _make_job(
        self, configuration: EvaluationConfiguration, fault: FaultPlacement | None = None
    ) -> ServingJob:
        matrix = self.matrix
        tasks = configuration.tasks or matrix.tasks
        items = configuration.items or matrix.items
        name = configuration.name
        if fault is not None:
            tasks = fault.tasks or tasks
            items = min(items, fault.items or items)
            name = name_fault_configuration(fault, configuration)
        plain = configuration.engine == TRANSFORMERS_ENGINE
        common_arguments = EvaluationConfiguration("", "", serve=matrix.serve).server_arguments
        is_base = any(one.like == configuration.name for one in matrix.configurations) or any(
            configuration.name in other.where for other in matrix.faults
        )
        repeated_items = 0
        if is_base and not plain and fault is None:
            # No token of random weights is certain: all items are repeated to measure the noise.
            random_weights = RANDOM_WEIGHTS in configuration.stand_ins
            repeated_items = min(
                MAX_REPEATED_ITEMS, items if random_weights else max(2, items // 3)
            )
        compares_accuracy = any(one.against for one in matrix.configurations)
        return ServingJob(
            name,
            configuration,
            items_by_task={get_task_name(task): list(range(items)) for task in tasks},
            drawn_items=max(self.max_items, items) if compares_accuracy else items,
            concurrency=configuration.concurrency or matrix.concurrency,
            dtype="float32" if plain else configuration.dtype or matrix.dtype,
            revert=[*configuration.revert, *([fault.revert] if fault and fault.revert else [])],
            enable=[*configuration.enable, *([fault.enable] if fault and fault.enable else [])],
            repeated_items=repeated_items,
            is_planted=fault is not None,
            server_arguments=[] if plain else [*common_arguments, *configuration.server_arguments],
            environment={**matrix.environment, **configuration.environment},
        )

    def _list_prerequisites(self, job: ServingJob, planted: set[str]) -> set[str]:
        """Return what is served before a job: its base, and the faults that are planted in it."""
        if job.is_planted:
            return set()
        return ({self._get_base_name(job)} - {""}) | (planted & self._list_fault_names(job))

    def _list_fault_names(self, job: ServingJob) -> set[str]:
        configuration = job.configuration
        return {
            name_fault_configuration(fault, configuration)
            for fault in self.matrix.faults
            if configuration.name in fault.where
        }

    def _choose_fault_items(self, job: ServingJob) -> ItemsByTask:
        """Choose the items that were repeated with a planted fault, to ask them without it."""
        if job.is_planted:
            return {}
        names = self._list_fault_names(job)
        return fault_evidence.merge_items(
            fault_evidence.choose_base_items(self._planted_items[served.name], served)
            for served in self.evaluation.served
            if served.name in names
        )

    def _get_base_name(self, job: ServingJob) -> str:
        """Return the base of a candidate's accuracy, which is served first; '' for a fault."""
        return "" if job.is_planted else job.configuration.against

    def _serve_job(self, job: ServingJob) -> ServedConfiguration:
        """Serve a candidate batch by batch until its accuracy is clear, all others at once.

        A candidate under check gets all of its items at once: its launches are checked.
        """
        base_name = self._get_base_name(job)
        if not base_name or CHECKED_KERNELS in job.configuration.stand_ins:
            return self.servers.serve_job(job, request_nothing)
        base = self.evaluation.find_configuration(base_name)
        if base.failure or not base.answers:
            return self.servers.serve_job(job, request_nothing)
        all_items, batch = job.items_by_task, paired_statistics.BATCH_ITEMS

        def request_more(served: ServedConfiguration) -> ItemsByTask:
            more: ItemsByTask = {}
            for task, numbers in all_items.items():
                count = len(served.select_answers(task))
                if count:
                    result = self.comparer.compare_pair(base, served, "accuracy", "", task)
                    if result.verdict is not Verdict.CANNOT_TELL or not result.items:
                        continue
                more[task] = numbers[count : count + batch]
            return {task: numbers for task, numbers in more.items() if numbers}

        job.items_by_task = {task: numbers[:batch] for task, numbers in all_items.items()}
        return self.servers.serve_job(job, request_more)

    def _explain_absence(
        self, fault: FaultPlacement, configuration: EvaluationConfiguration
    ) -> str:
        """Explain why a toggle cannot be planted in this release; '' if it can."""
        release = configuration.release or self.settings.release
        tree = managed_releases.open_release_tree(release)
        for toggle in self._toggles.select(fault.toggle):
            status = find_toggle_status(toggle, tree)
            if status.state is ToggleState.STALE:
                raise UnfixError(f"{fault.toggle} is stale on {release}: {status.problem}")
            if status.state is not (ToggleState.FIXED if fault.revert else ToggleState.BUGGY):
                return f"{fault.toggle} is {status.state.value} on SGLang {release}"
        return ""

    # Doubts

    def _resolve_doubts(self) -> None:
        """Send more items where the accuracy is unclear, up to the limit or the task's end."""
        evaluation = self.evaluation
        faulty = {fault.served for fault in evaluation.faults}
        exhausted: set[tuple[str, str]] = set()  # candidates and tasks without further items
        while doubts := [
            one
            for one in evaluation.compared
            if (one.kind, one.verdict) == ("accuracy", Verdict.CANNOT_TELL)
            and one.candidate not in faulty
            and 0 < one.items < self.max_items
            and (one.candidate, one.task) not in exhausted
        ]:
            items: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
            for doubt in doubts:
                end = min(self.max_items, doubt.items + paired_statistics.DEFAULT_ITEMS)
                for name in (doubt.base, doubt.candidate):
                    answers = evaluation.find_configuration(name).select_answers(doubt.task)
                    known = {answer.number for answer in answers}
                    items[name][doubt.task] |= set(range(doubt.items, end)) - known
            for name, by_task in items.items():
                self._ask_further(
                    name, {task: sorted(numbers) for task, numbers in by_task.items() if numbers}
                )
            for doubt in doubts:
                candidate = evaluation.find_configuration(doubt.candidate)
                base = evaluation.find_configuration(doubt.base)
                result = self.comparer.compare_pair(base, candidate, "accuracy", "", doubt.task)
                evaluation.compared[evaluation.compared.index(doubt)] = result
                if result.items <= doubt.items:
                    exhausted.add((doubt.candidate, doubt.task))
                self.on_progress(evaluation, f"{doubt.candidate} {doubt.task}: {result.words}")

    def _ask_further(self, name: str, items_by_task: ItemsByTask) -> None:
        if not items_by_task:
            return
        job = self._make_job(self.matrix.find_configuration(name))
        job.items_by_task, job.repeated_items = items_by_task, 0
        more = self.servers.serve_job(job, request_nothing)
        served = self.evaluation.find_configuration(name)
        served.answers += more.answers
        served.seconds += more.seconds
        served.failure = more.failure


def _summarize_served(served: ServedConfiguration) -> str:
    if served.absent:
        return f"{served.name}: n/a, {served.absent}"
    if served.failure:
        return f"{served.name}: {served.failure}"
    right = sum(bool(answer.right) for answer in served.answers)
    return f"{served.name}: {right} of {len(served.answers)} right"


def begin_evaluation(
    matrix: MatrixFile, settings: ServingSettings, identity: str, command: str
) -> Evaluation:
    """Begin an evaluation without results, with the smallest drop that its size can detect."""
    count = matrix.comparison_count
    drop = power_analysis.find_smallest_drop(matrix.items, count, tolerance=matrix.tolerance)
    return Evaluation(
        *(identity, matrix.name, command, time.time(), 0.0, RunStatus.RUNNING, settings.device),
        *(matrix.seed, matrix.items, paired_statistics.ALPHA, count, drop),
    )


def get_evaluation_folder(identity: str, state: Path) -> Path:
    return state / "evals" / identity
