"""One configuration served and asked: from a setup to answers, whatever goes wrong between."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.compiled import CHECKS
from harness.eval import lm_side, models
from harness.eval.matrix import REFERENCE, Configuration
from harness.eval.scorer import Scorer
from harness.releases import managed
from harness.serving import adaptations, server
from harness.serving.server import UNASKED, Server, ServerFailed, Setup
from harness.serving.warm import House
from harness.store.eval.values import Answer, Served

CPU = {"OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}
Samples = dict[str, list[int]]


@dataclass(frozen=True)
class Where:
    """What all servers of a run share."""

    device: str
    release: str
    folder: Path  # of this run
    toggles: tuple[Path, ...]
    afresh: bool  # never forked from a process that has imported SGLang
    patience: float  # seconds until a server has to be ready
    limit: float = lm_side.SECONDS  # and until a request has to be answered
    module: str = server.COLD  # what serves

    def python(self, release: str) -> Path:
        if release == "current":
            return Path(sys.executable)
        return managed.get(release).python


# What is checked of a server: on a GPU its compiled kernels are, and it ends at the first report.
ON_A_GPU = ",".join((*CHECKS, "stop"))
UNCHECKED = "it launched no kernel of Triton's: that it is under check says nothing"
SURE = 60.0  # seconds for one token, after which a server that gave no answers hangs


@dataclass
class Task:
    """A configuration to serve, with the toggles that it is served under."""

    name: str
    one: Configuration
    samples: Samples
    items: int  # that the tasks are drawn with
    concurrency: int
    dtype: str
    revert: list[str] = field(default_factory=list)
    enable: list[str] = field(default_factory=list)
    again: int = 0  # so many items of a task are asked twice: its noise is wanted
    words: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


class Askers:
    """Serves tasks, several at a time: houses by release, and lm-eval processes, are kept."""

    def __init__(self, where: Where, seed: int) -> None:
        self.where = where
        self.seed = seed
        self._houses: dict[tuple[str, tuple[tuple[str, str], ...]], House] = {}
        self._lock = threading.Lock()
        self._scorers: queue.SimpleQueue[Scorer] = queue.SimpleQueue()
        self._every: list[Scorer] = []
        self._live: set[Server] = set()
        self._closed = False

    def serve(self, task: Task, judge: Callable[[Served], Samples]) -> Served:
        """Serve it, ask it, and go on asking what `judge` wants; never raises for the server."""
        one = task.one
        release = one.release or self.where.release
        served = Served(
            task.name,
            one.model,
            release,
            task.words,
            self.where.device,
            task.revert,
            task.enable,
            [adaptations.WORDS[name] for name in one.stand_ins],
        )
        if one.absent:
            served.absent = one.absent
            return served
        try:
            with self._started(task, release, served) as running, self._scorer() as scorer:
                self._ask(running, scorer, task, served, judge)
                served.seconds = running.seconds_since_ready
        except ServerFailed as error:
            served.failure = str(error)
        return served

    @contextlib.contextmanager
    def _started(self, task: Task, release: str, served: Served) -> Iterator[Server]:
        setup = self._setup(task, release)
        folder = self.where.folder / "servers" / task.name.replace("/", "-")
        house = None if self._must_be_afresh(task) else self._house(setup, release)
        running = self._start(setup, folder, house)
        try:
            try:
                running.wait(self.where.patience)
            except ServerFailed:
                if not running.refused:
                    raise
                self._forget(running)
                running = self._start(setup, folder, None)
                running.wait(self.where.patience)
            served.ready = running.seconds
            served.how = "warm" if running.warm else "afresh"
            if setup.module == server.REFERENCE:
                served.how = "plain transformers"
            yield running
        finally:
            served.reach = running.reach()  # of a server that died, too
            self._forget(running)
            if (checked := running.checked()) is not None:
                served.stand_ins.append(str(checked))
                served.stand_ins += [f"{name}: {why}" for name, why in checked.refused.items()]
                if checked.reports:
                    said = checked.reports[0].in_a_line
                else:
                    said = "" if checked.launches else UNCHECKED
                served.failure = served.failure or said  # how it died is told with its report

    def _start(self, setup: Setup, folder: Path, house: House | None) -> Server:
        self._refuse_if_closed()
        running = Server(setup, folder, house)
        with self._lock:
            self._live.add(running)
        if self._closed:  # since we looked, and whoever closed it did not see this one
            self._forget(running)
        self._refuse_if_closed()
        return running

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ServerFailed("the run was stopped")

    def _forget(self, running: Server) -> None:
        running.stop()
        with self._lock:
            self._live.discard(running)

    def _must_be_afresh(self, task: Task) -> bool:
        """Where no fork will do."""
        one = task.one
        return self.where.afresh or self.where.device != "cpu" or one.engine == REFERENCE

    def _house(self, setup: Setup, release: str) -> House:
        # SGLang reads some variables as it is imported: who has others has a house of its own.
        key = release, tuple(sorted(setup.environment.items()))
        with self._lock:
            self._refuse_if_closed()
            if key not in self._houses:
                log = self.where.folder / "houses" / f"{release}-{len(self._houses)}.log"
                self._houses[key] = House(setup, log)
            return self._houses[key]

    def _setup(self, task: Task, release: str) -> Setup:
        one = task.one
        python = self.where.python(release)
        here = {**UNASKED, **(CPU if self.where.device == "cpu" else {}), **task.environment}
        if one.engine == REFERENCE:
            return Setup(
                python,
                (str(models.folder(one.model)),),
                release,
                environment=here,
                module=server.REFERENCE,
            )
        found = models.as_type(models.folder(one.model), task.dtype)
        words = [*task.words, "--model-path", str(found)]
        if adaptations.DRAWN in one.stand_ins:
            words += ["--load-format", "dummy"]
        if one.draft:
            draft = models.as_type(models.folder(one.draft), task.dtype)
            words += [f"--{models.DRAFTS}", str(draft)]
        if task.dtype:
            words += ["--dtype", task.dtype]
        if self.where.device == "cpu":
            words += ["--device", "cpu"]
        return Setup(
            python,
            tuple(words),
            release,
            tuple(task.revert),
            tuple(task.enable),
            self.where.toggles,
            tuple(one.stand_ins),
            here,
            self.where.module,
            ON_A_GPU if self.where.device != "cpu" and adaptations.CHECKED in one.stand_ins else "",
        )

    def _ask(
        self,
        running: Server,
        scorer: Scorer,
        task: Task,
        served: Served,
        judge: Callable[[Served], Samples],
    ) -> None:
        wanted = task.samples
        while wanted:
            try:
                found = self._once(running, scorer, task, wanted, task.concurrency)
                served.answers += found
            finally:
                if running.dead:
                    served.failure = f"the server died: {running.why()}"
            errors = any(answer.error for answer in found)
            if errors and not running.dead and not running.answers(min(self.where.limit, SURE)):
                served.failure = running.hang()
            if served.failure:
                return
            # A task that gave fewer than it was asked for has no more.
            over = {
                name
                for name, numbers in wanted.items()
                if sum(answer.task == name for answer in found) < len(numbers)
            }
            wanted = {name: some for name, some in judge(served).items() if name not in over}
        served.accepted = _accepted(running)
        if task.again:
            with contextlib.suppress(OSError, http.client.HTTPException):
                running.ask("/flush_cache", {}, seconds=60)
            half = max(1, task.concurrency // 2)
            some = {name: numbers[: task.again] for name, numbers in task.samples.items()}
            served.again = self._once(running, scorer, task, some, half)
            if running.dead:
                served.failure = f"the server died: {running.why()}"

    def _once(
        self, running: Server, scorer: Scorer, task: Task, samples: Samples, concurrency: int
    ) -> list[Answer]:
        return scorer.ask(
            running,
            samples,
            items=task.items,
            concurrency=concurrency,
            model=task.one.model,
            limit=self.where.limit,
        )

    @contextlib.contextmanager
    def _scorer(self) -> Iterator[Scorer]:
        try:
            scorer = self._scorers.get_nowait()
        except queue.Empty:
            with self._lock:
                self._refuse_if_closed()
                log = self.where.folder / "lm-eval" / f"{len(self._every)}.log"
                scorer = Scorer(log, self.seed)
                self._every.append(scorer)
        try:
            yield scorer
        except BaseException:
            scorer.end()  # nobody knows what it would answer next
            raise
        else:
            self._scorers.put(scorer)

    def stop(self) -> None:
        """End all processes; a thread that waits for one of them hears of that."""
        self._closed = True
        with self._lock:
            live, houses, scorers = list(self._live), list(self._houses.values()), self._every[:]
        for running in live:
            running.tell()
        for scorer in scorers:
            scorer.end()
        for house in houses:
            house.end()
        for running in live:
            running.stop()

    def close(self) -> None:
        """Once no thread asks any more."""
        self.stop()
        for house in self._houses.values():
            house.close()
        for scorer in self._every:
            scorer.close()


def _accepted(running: Server) -> float | None:
    """The mean number of tokens a step of speculative decoding gave, as the server counts."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        said = json.loads(running.ask("/get_server_info", seconds=20))
        found = said["internal_states"][0]["avg_spec_accept_length"]
        return float(found) if found else None
    return None
