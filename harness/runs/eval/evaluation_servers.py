"""Serves one configuration and sends it items; every failure becomes part of the result."""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from harness.guards.verdicts import REQUIRED_FAILURES
from harness.runs.eval import fault_evidence
from harness.runs.eval.configuration_checks import TRANSFORMERS_ENGINE
from harness.runs.eval.job_session import HANG_PROBE_SECONDS, JobSession, RequestMore
from harness.runs.eval.lm_eval_scorer import LmEvalScorer
from harness.runs.eval.serving_job import ServingJob, ServingSettings, make_server_setup
from harness.store.eval.values import RepeatedRun, ServedConfiguration
from harness.workers.servers import adaptations, server
from harness.workers.servers.server import ServerFailed, ServerSetup, SglangServer
from harness.workers.servers.warm_start import ServerZygote


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

    def serve_job(self, job: ServingJob, request_more: RequestMore) -> ServedConfiguration:
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
        request_more: RequestMore,
    ) -> None:
        try:
            with (
                self._places,
                self._run_server(job, release, served) as running,
                self._borrow_scorer() as scorer,
            ):
                JobSession(running, scorer, self.settings, job, served).ask_items(request_more)
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

        def repeat(number: int) -> RepeatedRun:
            name = f"{job.name}, again {number}"  # of its folder: each log is kept
            again = self._serve_again(replace(job, name=name), release, served)
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
