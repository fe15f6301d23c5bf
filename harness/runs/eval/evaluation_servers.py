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

from harness.kernels.gpu import DEFAULT_CHECKS
from harness.releases import managed_releases
from harness.runs.eval import lm_eval_client, model_folders
from harness.runs.eval.lm_eval_scorer import LmEvalScorer
from harness.runs.eval.matrix_file import TRANSFORMERS_ENGINE, EvaluationConfiguration
from harness.store.eval.values import ItemAnswer, ServedConfiguration
from harness.workers.servers import adaptations, server
from harness.workers.servers.server import (
    DEFAULT_ENVIRONMENT,
    ServerFailed,
    ServerSetup,
    SglangServer,
)
from harness.workers.servers.warm_start import ServerZygote

CPU_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}
ItemsByTask = dict[str, list[int]]


@dataclass(frozen=True)
class ServingSettings:
    """What all servers of a run share."""

    device: str
    release: str
    folder: Path  # of this run
    toggles: tuple[Path, ...]
    always_cold: bool  # never forked from a process that has imported SGLang
    ready_timeout: float  # seconds until a server has to be ready
    request_timeout: float = (
        lm_eval_client.REQUEST_SECONDS
    )  # and until a request has to be answered
    server_module: str = server.COLD_START_MODULE  # what serves

    def get_python(self, release: str) -> Path:
        if release == "current":
            return Path(sys.executable)
        return managed_releases.get_release(release).python


# What is checked of a server: on a GPU its compiled kernels are, and it ends at the first report.
GPU_CHECKS = ",".join((*DEFAULT_CHECKS, "stop"))
NO_LAUNCH_MESSAGE = "it launched no kernel of Triton's: that it is under check says nothing"
HANG_PROBE_SECONDS = 60.0  # seconds for one token, after which a server that gave no answers hangs


@dataclass
class ServingJob:
    """A configuration to serve, with the toggles that it is served under."""

    name: str
    configuration: EvaluationConfiguration
    items_by_task: ItemsByTask
    drawn_items: int  # that the tasks are drawn with
    concurrency: int
    dtype: str
    revert: list[str] = field(default_factory=list)
    enable: list[str] = field(default_factory=list)
    repeated_items: int = 0  # so many items of a task are asked twice: its noise is wanted
    server_arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


class EvaluationServers:
    """Serves tasks, several at a time: houses by release, and lm-eval processes, are kept."""

    def __init__(self, settings: ServingSettings, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self._preloaded_processes: dict[tuple[str, tuple[tuple[str, str], ...]], ServerZygote] = {}
        self._lock = threading.Lock()
        self._idle_scorers: queue.SimpleQueue[LmEvalScorer] = queue.SimpleQueue()
        self._all_scorers: list[LmEvalScorer] = []
        self._live_servers: set[SglangServer] = set()
        self._closed = False

    def serve_job(
        self, job: ServingJob, request_more: Callable[[ServedConfiguration], ItemsByTask]
    ) -> ServedConfiguration:
        """Serve it, ask it, and go on asking what `judge` wants; never raises for the server."""
        one = job.configuration
        release = one.release or self.settings.release
        served = ServedConfiguration(
            job.name,
            one.model,
            release,
            job.server_arguments,
            self.settings.device,
            job.revert,
            job.enable,
            [adaptations.DESCRIPTIONS[name] for name in one.stand_ins],
        )
        if one.absent:
            served.absent = one.absent
            return served
        try:
            with self._run_server(job, release, served) as running, self._borrow_scorer() as scorer:
                self._ask_items(running, scorer, job, served, request_more)
                served.seconds = running.seconds_since_ready
        except ServerFailed as error:
            served.failure = str(error)
        return served

    @contextlib.contextmanager
    def _run_server(
        self, job: ServingJob, release: str, served: ServedConfiguration
    ) -> Iterator[SglangServer]:
        setup = self._make_setup(job, release)
        folder = self.settings.folder / "servers" / job.name.replace("/", "-")
        house = (
            None
            if self._is_cold_start_required(job)
            else self._get_preloaded_process(setup, release)
        )
        running = self._start_server(setup, folder, house)
        try:
            try:
                running.wait_until_ready(self.settings.ready_timeout)
            except ServerFailed:
                if not running.refusal:
                    raise
                self._stop_server(running)
                running = self._start_server(setup, folder, None)
                running.wait_until_ready(self.settings.ready_timeout)
            served.ready = running.seconds_to_ready
            served.how = "warm" if running.is_warm else "afresh"
            if setup.module == server.REFERENCE_MODULE:
                served.how = "plain transformers"
            yield running
        finally:
            served.reach = running.read_reach()  # of a server that died, too
            self._stop_server(running)
            if (checked := running.read_check_reports()) is not None:
                served.stand_ins.append(str(checked))
                served.stand_ins += [f"{name}: {why}" for name, why in checked.refusals.items()]
                if checked.reports:
                    said = checked.reports[0].summary_line
                else:
                    said = "" if checked.launches else NO_LAUNCH_MESSAGE
                served.failure = served.failure or said  # how it died is told with its report

    def _start_server(
        self, setup: ServerSetup, folder: Path, preloaded: ServerZygote | None
    ) -> SglangServer:
        self._refuse_if_closed()
        running = SglangServer(setup, folder, preloaded)
        with self._lock:
            self._live_servers.add(running)
        if self._closed:  # since we looked, and whoever closed it did not see this one
            self._stop_server(running)
        self._refuse_if_closed()
        return running

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ServerFailed("the run was stopped")

    def _stop_server(self, running: SglangServer) -> None:
        running.stop()
        with self._lock:
            self._live_servers.discard(running)

    def _is_cold_start_required(self, job: ServingJob) -> bool:
        """Where no fork will do."""
        one = job.configuration
        return (
            self.settings.always_cold
            or self.settings.device != "cpu"
            or one.engine == TRANSFORMERS_ENGINE
        )

    def _get_preloaded_process(self, setup: ServerSetup, release: str) -> ServerZygote:
        # SGLang reads some variables as it is imported: who has others has a house of its own.
        key = release, tuple(sorted(setup.environment.items()))
        with self._lock:
            self._refuse_if_closed()
            if key not in self._preloaded_processes:
                log = (
                    self.settings.folder
                    / "houses"
                    / f"{release}-{len(self._preloaded_processes)}.log"
                )
                self._preloaded_processes[key] = ServerZygote(setup, log)
            return self._preloaded_processes[key]

    def _make_setup(self, job: ServingJob, release: str) -> ServerSetup:
        one = job.configuration
        python = self.settings.get_python(release)
        here = {
            **DEFAULT_ENVIRONMENT,
            **(CPU_ENVIRONMENT if self.settings.device == "cpu" else {}),
            **job.environment,
        }
        if one.engine == TRANSFORMERS_ENGINE:
            return ServerSetup(
                python,
                (str(model_folders.find_model_folder(one.model)),),
                release,
                environment=here,
                module=server.REFERENCE_MODULE,
            )
        found = model_folders.make_dtype_variant(
            model_folders.find_model_folder(one.model), job.dtype
        )
        words = [*job.server_arguments, "--model-path", str(found)]
        if adaptations.RANDOM_WEIGHTS in one.stand_ins:
            words += ["--load-format", "dummy"]
        if one.draft:
            draft = model_folders.make_dtype_variant(
                model_folders.find_model_folder(one.draft), job.dtype
            )
            words += [f"--{model_folders.DRAFT_MODEL_OPTION}", str(draft)]
        if job.dtype:
            words += ["--dtype", job.dtype]
        if self.settings.device == "cpu":
            words += ["--device", "cpu"]
        return ServerSetup(
            python,
            tuple(words),
            release,
            tuple(job.revert),
            tuple(job.enable),
            self.settings.toggles,
            tuple(one.stand_ins),
            here,
            self.settings.server_module,
            GPU_CHECKS
            if self.settings.device != "cpu" and adaptations.CHECKED_KERNELS in one.stand_ins
            else "",
        )

    def _ask_items(
        self,
        running: SglangServer,
        scorer: LmEvalScorer,
        job: ServingJob,
        served: ServedConfiguration,
        request_more: Callable[[ServedConfiguration], ItemsByTask],
    ) -> None:
        wanted = job.items_by_task
        while wanted:
            try:
                found = self._ask_batch(running, scorer, job, wanted, job.concurrency)
                served.answers += found
            finally:
                if running.has_exited:
                    served.failure = f"the server died: {running.describe_exit()}"
            errors = any(answer.error for answer in found)
            if (
                errors
                and not running.has_exited
                and not running.is_answering(min(self.settings.request_timeout, HANG_PROBE_SECONDS))
            ):
                served.failure = running.describe_hang()
            if served.failure:
                return
            # A task that gave fewer than it was asked for has no more.
            over = {
                name
                for name, numbers in wanted.items()
                if sum(answer.task == name for answer in found) < len(numbers)
            }
            wanted = {name: some for name, some in request_more(served).items() if name not in over}
        served.accepted = _read_accept_length(running)
        if job.repeated_items:
            with contextlib.suppress(OSError, http.client.HTTPException):
                running.send_request("/flush_cache", {}, seconds=60)
            half = max(1, job.concurrency // 2)
            some = {
                name: numbers[: job.repeated_items] for name, numbers in job.items_by_task.items()
            }
            served.again = self._ask_batch(running, scorer, job, some, half)
            if running.has_exited:
                served.failure = f"the server died: {running.describe_exit()}"

    def _ask_batch(
        self,
        running: SglangServer,
        scorer: LmEvalScorer,
        job: ServingJob,
        items_by_task: ItemsByTask,
        concurrency: int,
    ) -> list[ItemAnswer]:
        return scorer.score_items(
            running,
            items_by_task,
            items=job.drawn_items,
            concurrency=concurrency,
            model=job.configuration.model,
            request_timeout=self.settings.request_timeout,
        )

    @contextlib.contextmanager
    def _borrow_scorer(self) -> Iterator[LmEvalScorer]:
        try:
            scorer = self._idle_scorers.get_nowait()
        except queue.Empty:
            with self._lock:
                self._refuse_if_closed()
                log = self.settings.folder / "lm-eval" / f"{len(self._all_scorers)}.log"
                scorer = LmEvalScorer(log, self.seed)
                self._all_scorers.append(scorer)
        try:
            yield scorer
        except BaseException:
            scorer.end()  # nobody knows what it would answer next
            raise
        else:
            self._idle_scorers.put(scorer)

    def stop(self) -> None:
        """End all processes; a thread that waits for one of them hears of that."""
        self._closed = True
        with self._lock:
            live, houses, scorers = (
                list(self._live_servers),
                list(self._preloaded_processes.values()),
                self._all_scorers[:],
            )
        for running in live:
            running.request_stop()
        for scorer in scorers:
            scorer.end()
        for house in houses:
            house.end()
        for running in live:
            running.stop()

    def close(self) -> None:
        """Once no thread asks any more."""
        self.stop()
        for house in self._preloaded_processes.values():
            house.close()
        for scorer in self._all_scorers:
            scorer.close()


def _read_accept_length(running: SglangServer) -> float | None:
    """The mean number of tokens a step of speculative decoding gave, as the server counts."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        said = json.loads(running.send_request("/get_server_info", seconds=20))
        found = said["internal_states"][0]["avg_spec_accept_length"]
        return float(found) if found else None
    return None
