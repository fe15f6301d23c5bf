"""Serves one configuration and sends it items; every failure becomes part of the result."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from harness.guards.verdicts import REQUIRED_FAILURES, REQUIRED_PASSES
from harness.runs.eval import fault_evidence
from harness.runs.eval.configuration_checks import TRANSFORMERS_ENGINE
from harness.runs.eval.fault_evidence import ItemsByTask
from harness.runs.eval.lm_eval_scorer import LmEvalScorer
from harness.runs.eval.serving_job import ServingJob, ServingSettings, make_server_setup
from harness.store.eval.values import ItemAnswer, RepeatedRun, ServedConfiguration
from harness.workers.servers import adaptations, server
from harness.workers.servers.rank_standstill import StandstillWatch
from harness.workers.servers.server import ServerFailed, ServerSetup, SglangServer
from harness.workers.servers.warm_start import ServerZygote

HANG_PROBE_SECONDS = 60.0  # limit for one token; a slower server hangs


class AnotherStandstill(Exception):
    """The ranks of a repetition stood still, and not as in the hang that it repeats: at another
    place, or after their last answer."""


class EvaluationServers:
    """Serves jobs, at most `jobs` at a time; preloaded and lm-eval processes are reused."""

    def __init__(self, settings: ServingSettings, seed: int, jobs: int = 1) -> None:
        self.settings = settings
        self.seed = seed
        self._places = threading.BoundedSemaphore(jobs)  # one for each server
        self._preloaded_processes: dict[tuple[str, tuple[tuple[str, str], ...]], ServerZygote] = {}
        self._lock = threading.Lock()
        self._idle_scorers: queue.SimpleQueue[LmEvalScorer] = queue.SimpleQueue()
        self._all_scorers: list[LmEvalScorer] = []
        self._live_servers: set[SglangServer] = set()
        self._closed = False

    def serve_job(
        self, job: ServingJob, request_more: Callable[[ServedConfiguration], ItemsByTask]
    ) -> ServedConfiguration:
        """Serve a job and send its items, then those that `request_more` adds; a server that fails
        is a result and no exception."""
        configuration = job.configuration
        release = configuration.release or self.settings.release
        served = ServedConfiguration(
            job.name,
            configuration.model,
            release,
            job.server_arguments,
            self.settings.device,
            job.revert,
            job.enable,
            [adaptations.DESCRIPTIONS[name] for name in configuration.stand_ins],
        )
        if configuration.absent:
            served.absent = configuration.absent
            return served
        self._serve_once(job, release, served, request_more)
        if job.is_planted and served.failure:
            self._repeat_failure(job, release, served)
        return served

    def _serve_once(
        self,
        job: ServingJob,
        release: str,
        served: ServedConfiguration,
        request_more: Callable[[ServedConfiguration], ItemsByTask],
    ) -> None:
        try:
            with (
                self._places,
                self._run_server(job, release, served) as running,
                self._borrow_scorer() as scorer,
            ):
                self._ask_items(running, scorer, job, served, request_more)
                served.seconds = running.seconds_since_ready
        except ServerFailed as error:
            served.failure = str(error)

    def _repeat_failure(self, job: ServingJob, release: str, served: ServedConfiguration) -> None:
        """Serve a fault again whose server failed, until it failed often enough or did not.

        A server that lives on and answers wrongly has failed as well. On a GPU a server takes a
        minute to start and a small part of the machine, so all repetitions are served at once.
        """
        served.repeated = []
        if fault_evidence.explain_failure_without_evidence(served.failure):
            return
        hang = served.failure if served.failure.startswith(f"{server.HANG_PREFIX}:") else ""

        def repeat(number: int) -> RepeatedRun:
            name = f"{job.name}, again {number}"  # of its folder: each log is kept
            try:
                again = self._serve_again(replace(job, name=name, known_hang=hang), release, served)
            except AnotherStandstill:  # no evidence before its limits are over
                again = self._serve_again(replace(job, name=f"{name}, whole"), release, served)
            return RepeatedRun(again.answers, again.failure)

        numbers = range(1, REQUIRED_FAILURES)
        if self.settings.device == "cuda":
            with concurrent.futures.ThreadPoolExecutor(len(numbers)) as pool:
                served.repeated = list(pool.map(repeat, numbers))
            return
        for run in map(repeat, numbers):
            served.repeated.append(run)
            if not run.failure and all(answer.right for answer in run.answers):
                return

    def _serve_again(
        self, job: ServingJob, release: str, served: ServedConfiguration
    ) -> ServedConfiguration:
        limit = min(self.settings.request_timeout, HANG_PROBE_SECONDS)
        repeated = replace(job, is_planted=False, request_timeout=limit)
        again = msgspec.structs.replace(
            served, answers=[], repeated=[], stand_ins=[], operators={}, reach={}, failure=""
        )
        self._serve_once(repeated, release, again, lambda _: {})
        return again

    @contextlib.contextmanager
    def _run_server(
        self, job: ServingJob, release: str, served: ServedConfiguration
    ) -> Iterator[SglangServer]:
        setup = make_server_setup(job, self.settings, release)
        folder = self.settings.folder / "servers" / job.name.replace("/", "-")
        preloaded = None
        if not self._is_cold_start_required(job):
            preloaded = self._get_preloaded_process(setup, release)
        running = self._start_server(setup, folder, preloaded)
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
            served.reach = running.read_reach()  # also of a server that died
            self._stop_server(running)
            if (record := running.read_device_record()) is not None:
                served.operators = dict(record.stand_ins)
                served.stand_ins += record.describe_others()
            if (check := running.read_check_reports()) is not None:
                served.stand_ins.append(str(check))
                served.stand_ins += [f"{name}: {why}" for name, why in check.refusals.items()]
                served.failure = served.failure or check.failure

    def _start_server(
        self, setup: ServerSetup, folder: Path, preloaded: ServerZygote | None
    ) -> SglangServer:
        self._refuse_if_closed()
        running = SglangServer(setup, folder, preloaded)
        with self._lock:
            self._live_servers.add(running)
        if self._closed:  # closed by a thread that did not see this server
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
        """Return whether the server cannot be forked from a preloaded process."""
        is_fresh = self.settings.always_cold or self.settings.device == "cuda"
        return is_fresh or job.configuration.engine == TRANSFORMERS_ENGINE

    def _get_preloaded_process(self, setup: ServerSetup, release: str) -> ServerZygote:
        # SGLang reads some variables when it is imported: one process for each environment.
        key = release, tuple(sorted(setup.environment.items()))
        with self._lock:
            self._refuse_if_closed()
            if key not in self._preloaded_processes:
                name = f"{release}-{len(self._preloaded_processes)}.log"
                log = self.settings.folder / "preloaded" / name
                self._preloaded_processes[key] = ServerZygote(setup, log)
            return self._preloaded_processes[key]

    def _ask_items(
        self,
        running: SglangServer,
        scorer: LmEvalScorer,
        job: ServingJob,
        served: ServedConfiguration,
        request_more: Callable[[ServedConfiguration], ItemsByTask],
    ) -> None:
        batch = job.items_by_task
        while batch:
            # What a GPU does is not seen by the kernel's counts. A first hang has nothing to be
            # compared with: it keeps its limits.
            is_watched = bool(job.known_hang) and self.settings.device != "cuda"
            watch = StandstillWatch(running, enabled=is_watched)
            try:
                with watch:
                    answers = self._ask_batch(running, scorer, job, batch, job.concurrency)
                served.answers += answers
            finally:
                if death := _describe_death(running):
                    served.failure = watch.hang or death
            has_errors = any(answer.error for answer in answers)
            if watch.hang and (watch.hang != job.known_hang or not has_errors):
                raise AnotherStandstill(watch.hang)
            if not served.failure and has_errors:
                served.failure = self._probe_server(running, job)
            if served.failure:
                return
            # A task with fewer answers than requested items has no further items.
            counts = Counter(answer.task for answer in answers)
            exhausted = {task for task, numbers in batch.items() if counts[task] < len(numbers)}
            more = request_more(served)
            batch = {task: numbers for task, numbers in more.items() if task not in exhausted}
        served.accepted = _read_accept_length(running)
        if job.repeated_items:
            self._empty_cache(running)
            half = max(1, job.concurrency // 2)
            repeated = {
                task: numbers[: job.repeated_items] for task, numbers in job.items_by_task.items()
            }
            served.again = self._ask_batch(running, scorer, job, repeated, half)
            served.failure = _describe_death(running)
        if job.is_planted:
            self._repeat_fault(running, scorer, job, served)
        else:
            self._repeat_items(running, scorer, job, served, job.fault_items, REQUIRED_PASSES)

    def _repeat_fault(
        self,
        running: SglangServer,
        scorer: LmEvalScorer,
        job: ServingJob,
        served: ServedConfiguration,
    ) -> None:
        """Ask a few items again, or all of them if wrong answers do not come again among a few.

        A bug of batches, or of pages in use, may show under the load of all items alone.
        """
        few = fault_evidence.choose_repeated_items(job.items_by_task, served.answers)
        self._repeat_items(running, scorer, job, served, few, REQUIRED_FAILURES, is_small=True)
        if not served.failure and fault_evidence.is_load_missing(served):
            served.repeated = []
            everything = job.items_by_task
            self._repeat_items(running, scorer, job, served, everything, REQUIRED_FAILURES)

    def _repeat_items(
        self,
        running: SglangServer,
        scorer: LmEvalScorer,
        job: ServingJob,
        served: ServedConfiguration,
        items_by_task: ItemsByTask,
        times: int,
        is_small: bool = False,
    ) -> None:
        """Ask items again with an empty cache; a few only until they do not show the fault."""
        for _ in range(times if items_by_task else 0):
            if served.failure:
                return
            self._empty_cache(running)
            answers = self._ask_batch(running, scorer, job, items_by_task, job.concurrency)
            served.repeated.append(RepeatedRun(answers))
            served.failure = _describe_death(running)
            if is_small and fault_evidence.is_load_missing(served):
                return

    def _probe_server(self, running: SglangServer, job: ServingJob) -> str:
        """Ask a server for a single token that left answers out; describe its hang, or ''."""
        limit = min(job.request_timeout or self.settings.request_timeout, HANG_PROBE_SECONDS)
        return "" if running.is_answering(limit) else running.describe_hang()

    def _empty_cache(self, running: SglangServer) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            running.send_request("/flush_cache", {}, seconds=60)

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
            request_timeout=job.request_timeout or self.settings.request_timeout,
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
        except AnotherStandstill:  # it has replied to each request
            self._idle_scorers.put(scorer)
            raise
        except BaseException:
            scorer.end()  # its next reply could belong to this request
            raise
        else:
            self._idle_scorers.put(scorer)

    def stop(self) -> None:
        """End all processes; a thread that waits for one of them gets an exception."""
        self._closed = True
        with self._lock:
            live, scorers = list(self._live_servers), self._all_scorers[:]
            preloaded = list(self._preloaded_processes.values())
        for running in live:
            running.request_stop()
        for scorer in scorers:
            scorer.end()
        for process in preloaded:
            process.end()
        for running in live:
            running.stop()

    def close(self) -> None:
        """End all processes, once no thread uses them any more."""
        self.stop()
        for process in self._preloaded_processes.values():
            process.close()
        for scorer in self._all_scorers:
            scorer.close()


def _describe_death(running: SglangServer) -> str:
    return f"the server died: {running.describe_exit()}" if running.has_died() else ""


def _read_accept_length(running: SglangServer) -> float | None:
    """Return the mean number of tokens per step of speculative decoding, counted by the server."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        info = json.loads(running.send_request("/get_server_info", seconds=20))
        length = info["internal_states"][0]["avg_spec_accept_length"]
        return float(length) if length else None
    return None
