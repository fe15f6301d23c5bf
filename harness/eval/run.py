"""A run: what depends on what is served first, pairs are compared, and doubts asked further."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from pathlib import Path

from harness.errors import UnfixError
from harness.eval import comparing, paired, power
from harness.eval.asking import Askers, Samples, Task, Where
from harness.eval.matrix import REFERENCE, Configuration, FaultIn, Matrix, but_for_toggles
from harness.eval.scorer import name_of
from harness.matching.states import State, find
from harness.registry import catalogue
from harness.releases import managed
from harness.serving.adaptations import CHECKED, DRAWN
from harness.store.eval.values import (
    Compared,
    Evaluation,
    Fault,
    Judged,
    Served,
)

AGAIN = 16  # items of a task that a base is asked twice, at most


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
        for fault in matrix.faults:
            self._toggles.select(fault.toggle)  # an unknown one is refused before anything runs

    def go(self) -> Evaluation:
        started = time.monotonic()
        try:
            self._serve_all()
            self._compare_all()
            self._further()
            self.askers.close()
            self.evaluation.status = "done"
        except BaseException as stop:
            self.evaluation.status = "stopped"
            self._end(stop, self.askers.close)
            self._end(stop, self._compare_all)  # what there is
            raise
        finally:
            self.evaluation.seconds = time.monotonic() - started
        return self.evaluation

    def _end(self, stop: BaseException, last: Callable[[], None]) -> None:
        """What fails after a stop is told beside it, not in its place."""
        try:
            last()
        except Exception as error:
            stop.add_note(f"and then {type(error).__name__}: {error}")

    def _serve_all(self) -> None:
        """Faults first, since they wait for nobody; who is held against a base comes after it."""
        waiting = [self._task(one, fault) for fault, one in self._fault_places()]
        waiting += [self._task(one) for one in self.matrix.configurations]
        order = {task.name: place for place, task in enumerate(reversed(waiting))}
        running: dict[concurrent.futures.Future[Served], Task] = {}
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            try:
                while waiting or running:
                    done = {served.name for served in self.evaluation.served}
                    for task in [task for task in waiting if self._base_of(task) in ("", *done)]:
                        waiting.remove(task)
                        running[pool.submit(self._serve, task)] = task
                    if not running:
                        raise UnfixError(f"nobody serves what {waiting[0].name} is held against")
                    ready, _ = concurrent.futures.wait(
                        running, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    for future in ready:
                        served = future.result()
                        del running[future]
                        self.evaluation.served.append(served)
                        self.saw(self.evaluation, _in_short(served))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.askers.stop()
                raise
        place = {one.name: number for number, one in enumerate(self.matrix.configurations)}
        self.evaluation.served.sort(
            key=lambda one: (place.get(one.name, len(place)), order[one.name])
        )

    def _compare_all(self) -> None:
        self.evaluation.compared, self.evaluation.faults = [], []
        there = {served.name for served in self.evaluation.served}
        for one in self.matrix.configurations:
            if {one.name, *one.bases} <= there:
                for compared in self._compare(one):
                    self._saw(compared)
        for fault in self.matrix.faults:
            for name in fault.where:
                one = self.matrix.one(name)
                task = self._task(one, fault)
                if reason := self._absent(fault, one):
                    self.evaluation.faults.append(
                        Fault(fault.toggle, name, task.name, False, False, [], "", absent=reason)
                    )
                elif {name, task.name} <= there:
                    self.evaluation.faults.append(self._caught(fault, task))

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
        # Weights that nobody trained are sure of nothing: all is repeated to know their noise.
        again = min(AGAIN, items if DRAWN in one.stand_ins else max(2, items // 3))
        name = one.name
        if fault is not None:
            name += f" {'without' if fault.revert else 'with'} {fault.toggle}"
        return Task(
            name,
            one,
            {task: list(range(items)) for task in tasks},
            max(self.limit, items) if any(o.against for o in matrix.configurations) else items,
            one.concurrency or matrix.concurrency,
            "float32" if plain else one.dtype or matrix.dtype,
            [*one.revert, *([fault.revert] if fault and fault.revert else [])],
            [*one.enable, *([fault.enable] if fault and fault.enable else [])],
            again=again if waits and not plain and fault is None else 0,
            words=[] if plain else words,
            environment={**matrix.environment, **one.environment},
        )

    def _base_of(self, task: Task) -> str:
        """Whose answers have to be there first: a candidate's accuracy is told batch by batch."""
        own = task.revert == task.one.revert and task.enable == task.one.enable
        return task.one.against if own else ""

    def _serve(self, task: Task) -> Served:
        """A candidate is asked batch by batch, until its accuracy is told; others all at once.

        So is one under check: what is wanted of that is its launches.
        """
        against = self._base_of(task)
        if not against or CHECKED in task.one.stand_ins:
            return self.askers.serve(task, lambda served: {})
        whole = task.samples
        base = self._served(against)

        def judge(served: Served) -> Samples:
            wanted: Samples = {}
            for name, numbers in whole.items():
                asked = len(served.of(name))
                told = asked and self._pair(base, served, "accuracy", "", name)
                if not told or (told.verdict is Judged.CANNOT_TELL and told.items):
                    wanted[name] = numbers[asked : asked + paired.BATCH]
            return {name: numbers for name, numbers in wanted.items() if numbers}

        if base.failure or not base.answers:
            return self.askers.serve(task, lambda served: {})
        task.samples = {name: numbers[: paired.BATCH] for name, numbers in whole.items()}
        return self.askers.serve(task, judge)

    def _served(self, name: str) -> Served:
        return self.evaluation.one(name)

    # Comparing

    def _compare(self, one: Configuration) -> list[Compared]:
        served = self._served(one.name)
        found = []
        if one.like:
            alike = but_for_toggles(one, self.matrix.one(one.like))
            base = self._served(one.like)
            found.append(self._pair(base, served, "tokens", self._type(one), alike=alike))
        if one.against:
            base = self._served(one.against)
            for task in self._tasks_of(one):
                found.append(self._pair(base, served, "accuracy", self._type(one), task))
        return found

    def _pair(
        self,
        base: Served,
        candidate: Served,
        kind: str,
        dtype: str,
        task: str = "",
        alike: bool = False,
    ) -> Compared:
        if base.absent or candidate.absent:
            reason = candidate.absent or base.absent
            return Compared(base.name, candidate.name, kind, task, Judged.NA, reason)
        if base.failure or candidate.failure or not (base.answers and candidate.answers):
            return comparing.failed(base, candidate, kind)
        try:
            if kind == "tokens":
                truth, exact = self._truth(base), self._exact(base)
                return comparing.tokens(
                    base, candidate, dtype=dtype, alike=alike, truth=truth, exact=exact
                )
            return comparing.accuracy(
                base, candidate, task, cells=self.evaluation.cells, tolerance=self.matrix.tolerance
            )
        except UnfixError as error:
            return comparing.cannot_be(base, candidate, kind, task, str(error))

    def _truth(self, base: Served) -> Served | None:
        """The same model in float32, where the matrix has it beside this one."""
        one = next((one for one in self.matrix.configurations if one.name == base.name), None)
        for name in one.bases if one else []:
            other = self.matrix.one(name)
            if other.engine == REFERENCE and other.model == base.model:
                return self._served(name)
        return None

    def _exact(self, base: Served) -> bool:
        """Whether it is plain transformers, in float32."""
        return any(
            one.name == base.name and one.engine == REFERENCE for one in self.matrix.configurations
        )

    def _type(self, one: Configuration) -> str:
        return one.dtype or self.matrix.dtype or "bfloat16"

    def _saw(self, compared: Compared) -> None:
        self.evaluation.compared.append(compared)
        words = f"{compared.base} -> {compared.candidate}"
        self.saw(self.evaluation, f"{words} {compared.task}: {compared.words}")

    # Faults

    def _fault_places(self) -> list[tuple[FaultIn, Configuration]]:
        """Where a fault can be put in, the others aside."""
        places = [
            (fault, self.matrix.one(name)) for fault in self.matrix.faults for name in fault.where
        ]
        return [(fault, one) for fault, one in places if not self._absent(fault, one)]

    def _absent(self, fault: FaultIn, one: Configuration) -> str:
        return one.absent or self._not_there(fault, one)

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
        if base.failure or not base.answers:
            reason = f"{base.name} was not served: {base.failure or 'no answers'}"
            return Fault(
                fault.toggle, task.one.name, served.name, False, False, [], "", absent=reason
            )
        found = [self._pair(base, served, "tokens", dtype, alike=True)]
        found.append(self._pair(base, served, "accuracy", dtype))
        by = []
        for compared in found:
            self._saw(compared)
            if compared.verdict.seen:
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
        over: set[tuple[str, str]] = set()  # candidates and tasks that have no more items
        while True:
            doubts = [
                one
                for one in self.evaluation.compared
                if one.kind == "accuracy"
                and one.verdict is Judged.CANNOT_TELL
                and one.candidate not in meant
                and 0 < one.items < self.limit
                and (one.candidate, one.task) not in over
            ]
            if not doubts:
                return
            wanted: dict[str, dict[str, set[int]]] = {}
            for doubt in doubts:
                numbers = set(range(doubt.items, min(self.limit, doubt.items + paired.ITEMS)))
                for name in (doubt.base, doubt.candidate):
                    known = {one.number for one in self._served(name).of(doubt.task)}
                    wanted.setdefault(name, {}).setdefault(doubt.task, set()).update(
                        numbers - known
                    )
            for name, samples in wanted.items():
                self._more(name, {task: sorted(some) for task, some in samples.items() if some})
            for doubt in doubts:
                one = self.matrix.one(doubt.candidate)
                base, candidate = self._served(doubt.base), self._served(doubt.candidate)
                again = self._pair(base, candidate, "accuracy", self._type(one), doubt.task)
                self.evaluation.compared[self.evaluation.compared.index(doubt)] = again
                if again.items <= doubt.items:
                    over.add((doubt.candidate, doubt.task))
                self.saw(self.evaluation, f"{doubt.candidate} {doubt.task}: {again.words}")

    def _more(self, name: str, samples: Samples) -> None:
        if not samples:
            return
        task = self._task(self.matrix.one(name))
        task.samples, task.again = samples, 0
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
