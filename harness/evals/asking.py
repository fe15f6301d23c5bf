"""One configuration served and asked: from a setup to answers, whatever goes wrong between."""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import NotReady, UnfixError
from harness.evals import models
from harness.evals.matrix import REFERENCE, Configuration
from harness.evals.scorer import Scorer
from harness.patching import environment
from harness.serving import adaptations, server
from harness.serving.server import House, Server, ServerFailed, Setup
from harness.store.evaluations import Served

CPU = {"OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1", "TRITON_INTERPRET": "1"}
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

    def python(self, release: str) -> Path:
        if release == "current":
            return Path(sys.executable)
        return environment.ready(release).python


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
    again: bool = False  # ask twice: its noise is wanted
    words: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


class Askers:
    """Serves tasks, several at a time: houses by release, and lm-eval processes, are kept."""

    def __init__(self, where: Where, seed: int) -> None:
        self.where = where
        self.seed = seed
        self._houses: dict[str, House] = {}
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
            served.reach = running.reach()
        finally:
            self._forget(running)

    def _start(self, setup: Setup, folder: Path, house: House | None) -> Server:
        with self._lock:
            if self._closed:
                raise ServerFailed("the run was stopped")
            running = Server(setup, folder, house)
            self._live.add(running)
        return running

    def _forget(self, running: Server) -> None:
        running.stop()
        self._live.discard(running)

    def _must_be_afresh(self, task: Task) -> bool:
        return self.where.afresh or self.where.device != "cpu" or task.one.engine == REFERENCE

    def _house(self, setup: Setup, release: str) -> House:
        with self._lock:
            if release not in self._houses:
                log = self.where.folder / "houses" / f"{release}.log"
                self._houses[release] = House(setup, log)
            return self._houses[release]

    def _setup(self, task: Task, release: str) -> Setup:
        one = task.one
        python = self.where.python(release)
        here = {**(CPU if self.where.device == "cpu" else {}), **task.environment}
        if one.engine == REFERENCE:
            return Setup(
                python,
                (str(models.folder(one.model)),),
                release,
                environment=here,
                module=server.REFERENCE,
            )
        words = [*task.words, "--model-path", str(models.as_type(models.folder(one.model), task.dtype))]
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
        while wanted and any(wanted.values()):
            try:
                served.answers += scorer.ask(
                    running,
                    wanted,
                    items=task.items,
                    concurrency=task.concurrency,
                    model=task.one.model,
                )
            finally:
                if running.dead:
                    served.failure = f"the server died: {running.why()}"
            if served.failure:
                return
            wanted = judge(served)
        served.accepted = _accepted(running)
        if task.again:
            with contextlib.suppress(OSError, urllib.error.URLError):
                running.ask("/flush_cache", {})
            served.again = scorer.ask(
                running,
                task.samples,
                items=task.items,
                concurrency=max(1, task.concurrency // 2),
                model=task.one.model,
            )
            if running.dead:
                served.failure = f"the server died: {running.why()}"

    @contextlib.contextmanager
    def _scorer(self) -> Iterator[Scorer]:
        try:
            scorer = self._scorers.get_nowait()
        except queue.Empty:
            scorer = Scorer(self.where.folder / "lm-eval" / f"{len(self._every)}.log", self.seed)
            self._every.append(scorer)
        try:
            yield scorer
        except (UnfixError, NotReady):
            scorer.close()
            raise
        else:
            self._scorers.put(scorer)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for running in list(self._live):
            running.stop()
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
