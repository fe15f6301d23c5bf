"""A server that fails with a planted fault is started again, on a GPU all times at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from calling import PATIENCE_SECONDS
from faked import Fakes, fake
from fixture_types import Patch

from harness.guards.verdicts import REQUIRED_FAILURES
from harness.runs.eval.evaluation_servers import EvaluationServers
from harness.runs.eval.fault_evidence import explain_unconfirmed
from harness.runs.eval.runner import request_nothing
from harness.runs.eval.serving_job import ServingJob
from harness.store.eval.values import RepeatedRun, ServedConfiguration
from harness.workers.servers.server import ServerFailed, SglangServer

REPETITIONS = REQUIRED_FAILURES - 1


def serve_planted(
    fakes: Fakes, monkeypatch: Patch, jobs: int, barrier: threading.Barrier
) -> list[str]:
    """Serve a fault whose server dies on a GPU; return each repetition's failure.

    A repetition dies "beside others" if as many servers as the barrier counts run at once.
    """

    @contextlib.contextmanager
    def die(
        servers: EvaluationServers, job: ServingJob, release: str, served: ServedConfiguration
    ) -> Iterator[SglangServer]:
        if job.is_planted:
            raise ServerFailed("it dies")
        try:
            barrier.wait()
        except threading.BrokenBarrierError:
            raise ServerFailed("it dies alone") from None
        raise ServerFailed("it dies beside others")
        yield

    monkeypatch.setattr(EvaluationServers, "_run_server", die)
    job = ServingJob("one", fake("one"), {"unfix_recall": [0]}, 1, 1, "")
    job.is_planted = True
    servers = EvaluationServers(replace(fakes.where(), device="cuda"), 0, jobs)
    return [run.failure for run in servers.serve_job(job, request_nothing).repeated]


def test_repetitions_on_a_gpu_are_served_at_once(fakes: Fakes, monkeypatch: Patch) -> None:
    barrier = threading.Barrier(REPETITIONS, timeout=PATIENCE_SECONDS)
    repeated = serve_planted(fakes, monkeypatch, REPETITIONS, barrier)
    assert repeated == ["it dies beside others"] * REPETITIONS


def test_no_more_servers_run_than_jobs_are_allowed(fakes: Fakes, monkeypatch: Patch) -> None:
    barrier = threading.Barrier(REPETITIONS, timeout=0.3)
    repeated = serve_planted(fakes, monkeypatch, REPETITIONS - 1, barrier)
    assert repeated == ["it dies alone"] * REPETITIONS


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        (["the server died"] * REPETITIONS, ""),
        (["the server died", "out of memory: 9 GiB", "the server died"], "lacked memory"),
        (["UncheckableKernel: no loop", "", ""], "the checker of kernels refused one"),
    ],
)
def test_a_repetition_that_lacks_memory_is_no_evidence(failures: list[str], reason: str) -> None:
    base = ServedConfiguration("one", "llama", "current", [], "cuda")
    base.repeated = [RepeatedRun([]) for _ in range(REPETITIONS)]
    served = ServedConfiguration("one without 1", "llama", "current", [], "cuda")
    served.failure = "the server died"
    served.repeated = [RepeatedRun([], failure) for failure in failures]
    why = explain_unconfirmed(base, served, lambda *_: False)
    assert reason in why
    assert bool(why) == bool(reason)
