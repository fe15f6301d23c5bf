"""A run: what depends on what is served first, pairs are compared, and doubts asked further."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from pathlib import Path

from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases
from harness.runs.eval import paired_statistics, power_analysis, server_comparison
from harness.runs.eval.evaluation_servers import (
    EvaluationServers,
    ItemsByTask,
    ServingJob,
    ServingSettings,
)
from harness.runs.eval.lm_eval_scorer import get_task_name
from harness.runs.eval.matrix_file import (
    TRANSFORMERS_ENGINE,
    EvaluationConfiguration,
    EvaluationMatrix,
    FaultPlacement,
    is_same_but_toggles,
)
from harness.store.eval.values import (
    ComparisonResult,
    ComparisonVerdict,
    Evaluation,
    PlantedFault,
    ServedConfiguration,
)
from harness.workers.servers.adaptations import CHECKED_KERNELS, RANDOM_WEIGHTS

MAX_REPEATED_ITEMS = 16  # items of a task that a base is asked twice, at most


class EvaluationRunner:
    """One evaluation of a matrix."""

    def __init__(
        self,
        matrix: EvaluationMatrix,
        settings: ServingSettings,
        evaluation: Evaluation,
        *,
        jobs: int,
        max_items: int = paired_statistics.MAX_ITEMS,
        on_progress: Callable[[Evaluation, str], None] = lambda evaluation, what: None,
    ) -> None:
        self.matrix = matrix
        self.settings = settings
        self.evaluation = evaluation
        self.jobs = jobs
        self.max_items = max_items
        self.on_progress = on_progress
        self.servers = EvaluationServers(settings, matrix.seed)
        self._toggles = toggle_catalogue.load_catalogue(settings.toggles)
        for fault in matrix.faults:
            self._toggles.select(fault.toggle)  # an unknown one is refused before anything runs

    def execute(self) -> Evaluation:
        started = time.monotonic()
        try:
            self._serve_configurations()
            self._compare_served()
            self._resolve_doubts()
            self.servers.close()
            self.evaluation.status = "done"
        except BaseException as stop:
            self.evaluation.status = "stopped"
            self._run_after_stop(stop, self.servers.close)
            self._run_after_stop(stop, self._compare_served)  # what there is
            raise
        finally:
            self.evaluation.seconds = time.monotonic() - started
        return self.evaluation

    def _run_after_stop(self, stop: BaseException, cleanup: Callable[[], None]) -> None:
        """What fails after a stop is told beside it, not in its place."""
        try:
            cleanup()
        except Exception as error:
            stop.add_note(f"and then {type(error).__name__}: {error}")

    def _serve_configurations(self) -> None:
        """Faults first, since they wait for nobody; who is held against a base comes after it."""
        waiting = [self._make_job(one, fault) for fault, one in self._list_fault_configurations()]
        waiting += [self._make_job(one) for one in self.matrix.configurations]
        order = {task.name: place for place, task in enumerate(reversed(waiting))}
        running: dict[concurrent.futures.Future[ServedConfiguration], ServingJob] = {}
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            try:
                while waiting or running:
                    done = {served.name for served in self.evaluation.served}
                    for task in [
                        task for task in waiting if self._get_base_name(task) in ("", *done)
                    ]:
                        waiting.remove(task)
                        running[pool.submit(self._serve_job, task)] = task
                    if not running:
                        raise UnfixError(f"nobody serves what {waiting[0].name} is held against")
                    ready, _ = concurrent.futures.wait(
                        running, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    for future in ready:
                        served = future.result()
                        del running[future]
                        self.evaluation.served.append(served)
                        self.on_progress(self.evaluation, _summarize_served(served))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.servers.stop()
                raise
        place = {one.name: number for number, one in enumerate(self.matrix.configurations)}
        self.evaluation.served.sort(
            key=lambda one: (place.get(one.name, len(place)), order[one.name])
        )

    def _compare_served(self) -> None:
        self.evaluation.compared, self.evaluation.faults = [], []
        there = {served.name for served in self.evaluation.served}
        for one in self.matrix.configurations:
            if {one.name, *one.base_names} <= there:
                for compared in self._compare_configuration(one):
                    self._record_comparison(compared)
        for fault in self.matrix.faults:
            for name in fault.where:
                one = self.matrix.find_configuration(name)
                task = self._make_job(one, fault)
                if reason := self._find_fault_absence(fault, one):
                    self.evaluation.faults.append(
                        PlantedFault(
                            fault.toggle, name, task.name, False, False, [], "", absent=reason
                        )
                    )
                elif {name, task.name} <= there:
                    self.evaluation.faults.append(self._judge_fault(fault, task))

    # Serving

    def _list_task_names(self, configuration: EvaluationConfiguration) -> list[str]:
        return [get_task_name(task) for task in configuration.tasks or self.matrix.tasks]

    def _make_job(
        self, configuration: EvaluationConfiguration, fault: FaultPlacement | None = None
    ) -> ServingJob:
        matrix = self.matrix
        tasks = self._list_task_names(configuration)
        items = configuration.items or matrix.items
        if fault is not None:
            tasks = [get_task_name(task) for task in fault.tasks] or tasks
            items = min(items, fault.items or items)
        words = [
            *EvaluationConfiguration("", "", serve=matrix.serve).server_arguments,
            *configuration.server_arguments,
        ]
        plain = configuration.engine == TRANSFORMERS_ENGINE
        waited_for = [other for other in matrix.configurations if other.like == configuration.name]
        waits = bool(
            waited_for or any(configuration.name in other.where for other in matrix.faults)
        )
        # Weights that nobody trained are sure of nothing: all is repeated to know their noise.
        again = min(
            MAX_REPEATED_ITEMS,
            items if RANDOM_WEIGHTS in configuration.stand_ins else max(2, items // 3),
        )
        name = configuration.name
        if fault is not None:
            name += f" {'without' if fault.revert else 'with'} {fault.toggle}"
        return ServingJob(
            name,
            configuration,
            {task: list(range(items)) for task in tasks},
            max(self.max_items, items) if any(o.against for o in matrix.configurations) else items,
            configuration.concurrency or matrix.concurrency,
            "float32" if plain else configuration.dtype or matrix.dtype,
            [*configuration.revert, *([fault.revert] if fault and fault.revert else [])],
            [*configuration.enable, *([fault.enable] if fault and fault.enable else [])],
            repeated_items=again if waits and not plain and fault is None else 0,
            server_arguments=[] if plain else words,
            environment={**matrix.environment, **configuration.environment},
        )

    def _get_base_name(self, job: ServingJob) -> str:
        """Whose answers have to be there first: a candidate's accuracy is told batch by batch."""
        own = job.revert == job.configuration.revert and job.enable == job.configuration.enable
        return job.configuration.against if own else ""

    def _serve_job(self, job: ServingJob) -> ServedConfiguration:
        """A candidate is asked batch by batch, until its accuracy is told; others all at once.

        So is one under check: what is wanted of that is its launches.
        """
        against = self._get_base_name(job)
        if not against or CHECKED_KERNELS in job.configuration.stand_ins:
            return self.servers.serve_job(job, lambda served: {})
        whole = job.items_by_task
        base = self._find_served(against)

        def judge(served: ServedConfiguration) -> ItemsByTask:
            wanted: ItemsByTask = {}
            for name, numbers in whole.items():
                asked = len(served.select_answers(name))
                told = asked and self._compare_pair(base, served, "accuracy", "", name)
                if not told or (told.verdict is ComparisonVerdict.CANNOT_TELL and told.items):
                    wanted[name] = numbers[asked : asked + paired_statistics.BATCH_ITEMS]
            return {name: numbers for name, numbers in wanted.items() if numbers}

        if base.failure or not base.answers:
            return self.servers.serve_job(job, lambda served: {})
        job.items_by_task = {
            name: numbers[: paired_statistics.BATCH_ITEMS] for name, numbers in whole.items()
        }
        return self.servers.serve_job(job, judge)

    def _find_served(self, name: str) -> ServedConfiguration:
        return self.evaluation.find_configuration(name)

    # Comparing

    def _compare_configuration(
        self, configuration: EvaluationConfiguration
    ) -> list[ComparisonResult]:
        served = self._find_served(configuration.name)
        found = []
        if configuration.like:
            alike = is_same_but_toggles(
                configuration, self.matrix.find_configuration(configuration.like)
            )
            base = self._find_served(configuration.like)
            found.append(
                self._compare_pair(
                    base, served, "tokens", self._get_dtype(configuration), same_but_toggles=alike
                )
            )
        if configuration.against:
            base = self._find_served(configuration.against)
            for task in self._list_task_names(configuration):
                found.append(
                    self._compare_pair(
                        base, served, "accuracy", self._get_dtype(configuration), task
                    )
                )
        return found

    def _compare_pair(
        self,
        base: ServedConfiguration,
        candidate: ServedConfiguration,
        kind: str,
        dtype: str,
        task: str = "",
        same_but_toggles: bool = False,
    ) -> ComparisonResult:
        if base.absent or candidate.absent:
            reason = candidate.absent or base.absent
            return ComparisonResult(
                base.name, candidate.name, kind, task, ComparisonVerdict.NA, reason
            )
        if base.failure or candidate.failure or not (base.answers and candidate.answers):
            return server_comparison.make_failed_comparison(base, candidate, kind)
        try:
            if kind == "tokens":
                truth, exact = self._find_float32_reference(base), self._is_reference(base)
                return server_comparison.compare_tokens(
                    base,
                    candidate,
                    dtype=dtype,
                    same_but_toggles=same_but_toggles,
                    float32_reference=truth,
                    base_is_reference=exact,
                )
            return server_comparison.compare_accuracy(
                base,
                candidate,
                task,
                comparison_count=self.evaluation.cells,
                tolerance=self.matrix.tolerance,
            )
        except UnfixError as error:
            return server_comparison.make_incomparable(base, candidate, kind, task, str(error))

    def _find_float32_reference(self, base: ServedConfiguration) -> ServedConfiguration | None:
        """The same model in float32, where the matrix has it beside this one."""
        one = next((one for one in self.matrix.configurations if one.name == base.name), None)
        for name in one.base_names if one else []:
            other = self.matrix.find_configuration(name)
            if other.engine == TRANSFORMERS_ENGINE and other.model == base.model:
                return self._find_served(name)
        return None

    def _is_reference(self, base: ServedConfiguration) -> bool:
        """Whether it is plain transformers, in float32."""
        return any(
            one.name == base.name and one.engine == TRANSFORMERS_ENGINE
            for one in self.matrix.configurations
        )

    def _get_dtype(self, configuration: EvaluationConfiguration) -> str:
        return configuration.dtype or self.matrix.dtype or "bfloat16"

    def _record_comparison(self, compared: ComparisonResult) -> None:
        self.evaluation.compared.append(compared)
        words = f"{compared.base} -> {compared.candidate}"
        self.on_progress(self.evaluation, f"{words} {compared.task}: {compared.words}")

    # Faults

    def _list_fault_configurations(self) -> list[tuple[FaultPlacement, EvaluationConfiguration]]:
        """Where a fault can be put in, the others aside."""
        places = [
            (fault, self.matrix.find_configuration(name))
            for fault in self.matrix.faults
            for name in fault.where
        ]
        return [(fault, one) for fault, one in places if not self._find_fault_absence(fault, one)]

    def _find_fault_absence(
        self, fault: FaultPlacement, configuration: EvaluationConfiguration
    ) -> str:
        return configuration.absent or self._find_absence(fault, configuration)

    def _find_absence(self, fault: FaultPlacement, configuration: EvaluationConfiguration) -> str:
        """Why a toggle cannot be put into this release; '' if it can."""
        release = configuration.release or self.settings.release
        tree = managed_releases.open_release_tree(release)
        for toggle in self._toggles.select(fault.toggle):
            finding = find_toggle_status(toggle, tree)
            wanted = ToggleState.FIXED if fault.revert else ToggleState.BUGGY
            if finding.state is ToggleState.STALE:
                raise UnfixError(f"{fault.toggle} is stale on {release}: {finding.problem}")
            if finding.state is not wanted:
                return f"{fault.toggle} is {finding.state.value} on SGLang {release}"
        return ""

    def _judge_fault(self, fault: FaultPlacement, job: ServingJob) -> PlantedFault:
        base, served = self._find_served(job.configuration.name), self._find_served(job.name)
        dtype = self._get_dtype(job.configuration)
        if base.failure or not base.answers:
            reason = f"{base.name} was not served: {base.failure or 'no answers'}"
            return PlantedFault(
                fault.toggle,
                job.configuration.name,
                served.name,
                False,
                False,
                [],
                "",
                absent=reason,
            )
        found = [self._compare_pair(base, served, "tokens", dtype, same_but_toggles=True)]
        found.append(self._compare_pair(base, served, "accuracy", dtype))
        by = []
        for compared in found:
            self._record_comparison(compared)
            if compared.verdict.shows_fault:
                what = compared.task.removeprefix("unfix_") or compared.kind
                by.append(f"{what}: {compared.verdict.value}")
        reach = served.reach.get(fault.toggle, 0)
        if not reach:
            by = []  # whatever was seen, it was not this
        crashed = bool(served.failure)
        if not reach:
            sees = "nothing of it: its code never ran"
        elif crashed:
            sees = "crash"
        elif any(answer.error for answer in served.answers):
            sees = "errors"
        elif any(compared.lost for compared in found if compared.kind == "accuracy"):
            sees = "wrong answers"
        elif any(compared.verdict is ComparisonVerdict.DIFFERS for compared in found):
            sees = "other words"
        else:
            sees = "nothing"
        return PlantedFault(
            fault.toggle,
            job.configuration.name,
            served.name,
            fault.expect == "caught",
            bool(by),
            list(dict.fromkeys(by)),
            sees,
            reach,
        )

    # Doubts

    def _resolve_doubts(self) -> None:
        """Ask more where the accuracy cannot be told yet, up to the limit."""
        meant = {fault.served for fault in self.evaluation.faults}
        over: set[tuple[str, str]] = set()  # candidates and tasks that have no more items
        while True:
            doubts = [
                one
                for one in self.evaluation.compared
                if one.kind == "accuracy"
                and one.verdict is ComparisonVerdict.CANNOT_TELL
                and one.candidate not in meant
                and 0 < one.items < self.max_items
                and (one.candidate, one.task) not in over
            ]
            if not doubts:
                return
            wanted: dict[str, dict[str, set[int]]] = {}
            for doubt in doubts:
                numbers = set(
                    range(
                        doubt.items,
                        min(self.max_items, doubt.items + paired_statistics.DEFAULT_ITEMS),
                    )
                )
                for name in (doubt.base, doubt.candidate):
                    known = {
                        one.number for one in self._find_served(name).select_answers(doubt.task)
                    }
                    wanted.setdefault(name, {}).setdefault(doubt.task, set()).update(
                        numbers - known
                    )
            for name, samples in wanted.items():
                self._ask_further(
                    name, {task: sorted(some) for task, some in samples.items() if some}
                )
            for doubt in doubts:
                one = self.matrix.find_configuration(doubt.candidate)
                base, candidate = self._find_served(doubt.base), self._find_served(doubt.candidate)
                again = self._compare_pair(
                    base, candidate, "accuracy", self._get_dtype(one), doubt.task
                )
                self.evaluation.compared[self.evaluation.compared.index(doubt)] = again
                if again.items <= doubt.items:
                    over.add((doubt.candidate, doubt.task))
                self.on_progress(self.evaluation, f"{doubt.candidate} {doubt.task}: {again.words}")

    def _ask_further(self, name: str, items_by_task: ItemsByTask) -> None:
        if not items_by_task:
            return
        task = self._make_job(self.matrix.find_configuration(name))
        task.items_by_task, task.repeated_items = items_by_task, 0
        more = self.servers.serve_job(task, lambda served: {})
        served = self._find_served(name)
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
    matrix: EvaluationMatrix, settings: ServingSettings, identity: str, command: str
) -> Evaluation:
    """The evaluation that a run fills, with what its size can show."""
    cells = matrix.comparison_count
    return Evaluation(
        identity,
        matrix.name,
        command,
        time.time(),
        0.0,
        "running",
        settings.device,
        matrix.seed,
        matrix.items,
        paired_statistics.ALPHA,
        cells,
        power_analysis.find_smallest_drop(matrix.items, cells, tolerance=matrix.tolerance),
    )


def get_evaluation_folder(identity: str, state: Path) -> Path:
    return state / "evals" / identity
