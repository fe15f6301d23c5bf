"""A run: what depends on what is served first, pairs are compared, and doubts asked further."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from pathlib import Path

from harness.errors import NotReady, UnfixError
from harness.evals import comparing, paired, power
from harness.evals.asking import Askers, Samples, Task, Where
from harness.evals.matrix import REFERENCE, Configuration, FaultIn, Matrix
from harness.evals.scorer import name_of
from harness.matching.states import State, find
from harness.registry import catalogue
from harness.releases import managed
from harness.store.evaluations import (
    Compared,
    Evaluation,
    Fault,
    Judged,
    Served,
)

AGAIN = 16  # items of a task that a base is asked twice


class Run:
    """One evaluation of a matrix."""

    def __init__(
        self,
        matrix: Matrix,
        where: Where,
        evaluation: Evaluation,
        *,
        jobs: int,
        limit: int = paired.LIMIT,
        saw: Callable[[Evaluation, str], None] = lambda evaluation, what: None,
    ) -> None:
        self.matrix = matrix
        self.where = where
        self.evaluation = evaluation
        self.jobs = jobs
        self.limit = limit
        self.saw = saw
        self.askers = Askers(where, matrix.seed)
        self._toggles = catalogue.load(where.toggles)

    def go(self) -> Evaluation:
        started = time.monotonic()
        try:
            configurations = list(self.matrix.configurations)
            while configurations:
                done = {served.name for served in self.evaluation.served}
                ready = [one for one in configurations if set(one.bases) <= done]
                self._all([self._task(one) for one in ready])
                configurations = [one for one in configurations if one not in ready]
            for one in self.matrix.configurations:
                for compared in self._compare(one):
                    self._saw(compared)
            self._faults()
            self._further()
            self.evaluation.state = "done"
        finally:
            self.askers.close()
            self.evaluation.seconds = time.monotonic() - started
            if self.evaluation.state != "done":
                self.evaluation.state = "stopped"
        return self.evaluation

    # Serving

    def _tasks_of(self, one: Configuration) -> list[str]:
        return [name_of(task) for task in one.tasks or self.matrix.tasks]

    def _task(self, one: Configuration, fault: FaultIn | None = None) -> Task:
        matrix = self.matrix
        tasks = self._tasks_of(one)
        items = one.items or matrix.items
        if fault is not None:
            tasks = [name_of(task) for task in fault.tasks] or tasks
            items = min(items, fault.items or items)
        words = [*Configuration("", "", serve=matrix.serve).words, *one.words]
        plain = one.engine == REFERENCE
        waited_for = [other for other in matrix.configurations if other.like == one.name]
        waits = bool(waited_for or any(one.name in other.where for other in matrix.faults))
        return Task(
            one.name if fault is None else f"{one.name} without {fault.toggle}"
            if fault.revert else f"{one.name} with {fault.toggle}",
            one,
            {task: list(range(items)) for task in tasks},
            max(self.limit, items) if any(o.against for o in matrix.configurations) else items,
            one.concurrency or matrix.concurrency,
            "float32" if plain else one.dtype or matrix.dtype,
            [*one.revert, *([fault.revert] if fault and fault.revert else [])],
            [*one.enable, *([fault.enable] if fault and fault.enable else [])],
            again=waits and not plain and fault is None,
            words=[] if plain else words,
            environment={**matrix.environment, **one.environment},
        )

    def _all(self, tasks: list[Task]) -> None:
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            waiting = {pool.submit(self._serve, task): task for task in tasks}
            try:
                for future in concurrent.futures.as_completed(waiting):
                    served = future.result()
                    self.evaluation.served.append(served)
                    self.saw(self.evaluation, _in_short(served))
            except BaseException:
                self.askers.close()
                raise
        order = {task.name: place for place, task in enumerate(tasks)}
        self.evaluation.served.sort(key=lambda one: order.get(one.name, -1))

    def _serve(self, task: Task) -> Served:
        """A candidate is asked batch by batch, until its accuracy is told; others all at once."""
        against = task.one.against
        if not against or task.revert != task.one.revert or task.enable != task.one.enable:
            return self.askers.serve(task, lambda served: {})
        whole = task.samples
        base = self._served(against)

        def judge(served: Served) -> Samples:
            wanted: Samples = {}
            for name, numbers in whole.items():
                asked = len(served.of(name))
                told = asked and comparing.accuracy(
                    base, served, name, cells=self.evaluation.cells, tolerance=self.matrix.tolerance
                )
                if not told or told.verdict is Judged.CANNOT_TELL:
                    wanted[name] = numbers[asked : asked + paired.BATCH]
            return {name: numbers for name, numbers in wanted.items() if numbers}

        if base.answers:
            task.samples = {name: numbers[: paired.BATCH] for name, numbers in whole.items()}
        return self.askers.serve(task, judge if base.answers else lambda served: {})

    def _served(self, name: str) -> Served:
        return self.evaluation.one(name)

    # Comparing

    def _compare(self, one: Configuration) -> list[Compared]:
        served = self._served(one.name)
        found = []
        if one.like:
            found.append(self._pair(self._served(one.like), served, "tokens", self._type(one)))
        if one.against:
            base = self._served(one.against)
            for task in self._tasks_of(one):
                found.append(self._pair(base, served, "accuracy", self._type(one), task))
        return found

    def _pair(
        self, base: Served, candidate: Served, kind: str, dtype: str, task: str = ""
    ) -> Compared:
        if base.absent or candidate.absent:
            reason = candidate.absent or base.absent
            return Compared(base.name, candidate.name, kind, task, Judged.NA, reason)
        if base.failure or candidate.failure or not (base.answers and candidate.answers):
            return comparing.failed(base, candidate, kind)
        if kind == "tokens":
            return comparing.tokens(base, candidate, dtype=dtype)
        return comparing.accuracy(
            base, candidate, task, cells=self.evaluation.cells, tolerance=self.matrix.tolerance
        )

    def _type(self, one: Configuration) -> str:
        return one.dtype or self.matrix.dtype or "bfloat16"

    def _saw(self, compared: Compared) -> None:
        self.evaluation.compared.append(compared)
        words = f"{compared.base} -> {compared.candidate}"
        self.saw(self.evaluation, f"{words} {compared.task}: {compared.words}")

    # Faults

    def _faults(self) -> None:
        tasks: list[tuple[FaultIn, Task]] = []
        for fault in self.matrix.faults:
            for name in fault.where:
                one = self.matrix.one(name)
                task = self._task(one, fault)
                reason = one.absent or self._not_there(fault, one)
                if reason:
                    self.evaluation.faults.append(
                        Fault(
                            fault.toggle, name, task.name, False, False, [], "", absent=reason
                        )
                    )
                else:
                    tasks.append((fault, task))
        self._all([task for _, task in tasks])
        for fault, task in tasks:
            self.evaluation.faults.append(self._caught(fault, task))

    def _not_there(self, fault: FaultIn, one: Configuration) -> str:
        """Why a toggle cannot be put into this release; '' if it can."""
        release = one.release or self.where.release
        tree = managed.tree(release)
        for toggle in self._toggles.select(fault.toggle):
            finding = find(toggle, tree)
            wanted = State.FIXED if fault.revert else State.BUGGY
            if finding.state is State.STALE:
                raise UnfixError(f"{fault.toggle} is stale on {release}: {finding.problem}")
            if finding.state is not wanted:
                return f"{fault.toggle} is {finding.state.value} on SGLang {release}"
        return ""

    def _caught(self, fault: FaultIn, task: Task) -> Fault:
        base, served = self._served(task.one.name), self._served(task.name)
        dtype = self._type(task.one)
        found = [self._pair(base, served, "tokens", dtype)]
        found += [self._pair(base, served, "accuracy", dtype, name) for name in task.samples]
        by = []
        for compared in found:
            self._saw(compared)
            if compared.verdict.seen:
                what = compared.task.removeprefix("unfix_") or compared.kind
                by.append(f"{what}: {compared.verdict.value}")
        reach = sum(served.reach.get(name, 0) for name in (fault.toggle,))
        crashed = bool(served.failure)
        if crashed:
            sees = "crash"
        elif any(answer.error for answer in served.answers):
            sees = "errors"
        elif any(compared.lost for compared in found if compared.kind == "accuracy"):
            sees = "wrong answers"
        elif any(compared.verdict is Judged.DIFFERS for compared in found):
            sees = "other words"
        else:
            sees = "nothing"
        return Fault(
            fault.toggle,
            task.one.name,
            served.name,
            fault.expect == "caught",
            bool(by),
            list(dict.fromkeys(by)),
            sees,
            reach,
        )

    # Doubts

    def _further(self) -> None:
        """Ask more where the accuracy cannot be told yet, up to the limit."""
        meant = {fault.served for fault in self.evaluation.faults}
        while True:
            doubts = [
                one
                for one in self.evaluation.compared
                if one.kind == "accuracy"
                and one.verdict is Judged.CANNOT_TELL
                and one.candidate not in meant
                and one.items
                and one.items < self.limit
            ]
            if not doubts:
                return
            wanted: dict[str, Samples] = {}
            for doubt in doubts:
                numbers = list(range(doubt.items, min(self.limit, doubt.items + paired.ITEMS)))
                for name in (doubt.base, doubt.candidate):
                    known = {one.number for one in self._served(name).of(doubt.task)}
                    wanted.setdefault(name, {})[doubt.task] = [
                        number for number in numbers if number not in known
                    ]
            before = {doubt.candidate: doubt.items for doubt in doubts}
            for name, samples in wanted.items():
                self._more(name, {task: some for task, some in samples.items() if some})
            for doubt in doubts:
                one = self.matrix.one(doubt.candidate)
                again = self._pair(
                    self._served(doubt.base),
                    self._served(doubt.candidate),
                    "accuracy",
                    self._type(one),
                    doubt.task,
                )
                self.evaluation.compared[self.evaluation.compared.index(doubt)] = again
                if again.items <= before[doubt.candidate]:
                    raise NotReady(f"{doubt.task} has no more items to be asked")
                self.saw(self.evaluation, f"{doubt.candidate} {doubt.task}: {again.words}")

    def _more(self, name: str, samples: Samples) -> None:
        if not samples:
            return
        task = self._task(self.matrix.one(name))
        task.samples, task.again = samples, False
        more = self.askers.serve(task, lambda served: {})
        served = self._served(name)
        served.answers += more.answers
        served.seconds += more.seconds
        served.failure = more.failure


def _in_short(served: Served) -> str:
    if served.absent:
        return f"{served.name}: n/a, {served.absent}"
    if served.failure:
        return f"{served.name}: {served.failure}"
    right = sum(bool(answer.right) for answer in served.answers)
    return f"{served.name}: {right} of {len(served.answers)} right"


def begin(matrix: Matrix, where: Where, identity: str, command: str) -> Evaluation:
    """The evaluation that a run fills, with what its size can show."""
    cells = matrix.cells
    return Evaluation(
        identity,
        matrix.name,
        command,
        time.time(),
        0.0,
        "running",
        where.device,
        matrix.seed,
        matrix.items,
        paired.ALPHA,
        cells,
        power.smallest_drop(matrix.items, cells, tolerance=matrix.tolerance),
    )


def folder_of(identity: str, state: Path) -> Path:
    return state / "evals" / identity
