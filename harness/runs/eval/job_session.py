"""The items of one job, sent to one server that is up, and what a planted fault needs again.

A failure of the server ends the session, and is part of what was served.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from harness.guards.verdicts import REQUIRED_FAILURES, REQUIRED_PASSES
from harness.runs.eval import fault_evidence
from harness.runs.eval.fault_evidence import ItemsByTask
from harness.runs.eval.lm_eval_scorer import LmEvalScorer
from harness.runs.eval.serving_job import ServingJob, ServingSettings
from harness.store.eval.values import ItemAnswer, RepeatedRun, ServedConfiguration
from harness.workers.servers.server import SglangServer

HANG_PROBE_SECONDS = 60.0  # limit for one token; a slower server hangs
RequestMore = Callable[[ServedConfiguration], ItemsByTask]  # the items that follow a batch


@dataclass(frozen=True)
class JobSession:
    """A job and the server that answers it; each answer and failure goes into `served`."""

    server: SglangServer
    scorer: LmEvalScorer
    settings: ServingSettings
    job: ServingJob
    served: ServedConfiguration

    def ask_items(self, request_more: RequestMore) -> None:
        """Send the job's items, then those that `request_more` adds, then those to repeat."""
        job, served = self.job, self.served
        batch = job.items_by_task
        while batch:
            try:
                answers = self._ask_batch(batch, job.concurrency)
                served.answers += answers
            finally:
                served.failure = self._describe_death()
            if not served.failure and any(answer.error for answer in answers):
                served.failure = self._probe_server()
            if served.failure:
                return
            # A task with fewer answers than requested items has no further items.
            counts = Counter(answer.task for answer in answers)
            exhausted = {task for task, numbers in batch.items() if counts[task] < len(numbers)}
            more = request_more(served)
            batch = {task: numbers for task, numbers in more.items() if task not in exhausted}
        served.accepted = self._read_accept_length()
        if job.repeated_items:
            self._empty_cache()
            repeated = {
                task: numbers[: job.repeated_items] for task, numbers in job.items_by_task.items()
            }
            served.again = self._ask_batch(repeated, max(1, job.concurrency // 2))
            served.failure = self._describe_death()
        if job.is_planted:
            self._repeat_fault()
        else:
            self._repeat_items(job.fault_items, REQUIRED_PASSES)

    def _repeat_fault(self) -> None:
        """Ask a few items again, or all of them if wrong answers do not come again among a few.

        A bug of batches, or of pages in use, may show under the load of all items alone.
        """
        few = fault_evidence.choose_repeated_items(self.job.items_by_task, self.served.answers)
        self._repeat_items(few, REQUIRED_FAILURES, is_small=True)
        if not self.served.failure and fault_evidence.is_load_missing(self.served):
            self.served.repeated = []
            self._repeat_items(self.job.items_by_task, REQUIRED_FAILURES)

    def _repeat_items(self, items_by_task: ItemsByTask, times: int, is_small: bool = False) -> None:
        """Ask items again with an empty cache; a few only until they do not show the fault."""
        served = self.served
        for _ in range(times if items_by_task else 0):
            if served.failure:
                return
            self._empty_cache()
            answers = self._ask_batch(items_by_task, self.job.concurrency)
            served.repeated.append(RepeatedRun(answers))
            served.failure = self._describe_death()
            if is_small and fault_evidence.is_load_missing(served):
                return

    def _ask_batch(self, items_by_task: ItemsByTask, concurrency: int) -> list[ItemAnswer]:
        return self.scorer.score_items(
            self.server,
            items_by_task,
            items=self.job.drawn_items,
            concurrency=concurrency,
            model=self.job.configuration.model,
            request_timeout=self._request_timeout,
        )

    @property
    def _request_timeout(self) -> float:
        return self.job.request_timeout or self.settings.request_timeout

    def _probe_server(self) -> str:
        """Ask a server for a single token that left answers out; describe its hang, or ''."""
        limit = min(self._request_timeout, HANG_PROBE_SECONDS)
        return "" if self.server.is_answering(limit) else self.server.describe_hang()

    def _describe_death(self) -> str:
        if not self.server.has_died():
            return ""
        return f"the server died: {self.server.describe_exit()}"

    def _empty_cache(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.server.send_request("/flush_cache", {}, seconds=60)

    def _read_accept_length(self) -> float | None:
        """Return the mean number of tokens per step of speculative decoding, as it counts them."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            info = json.loads(self.server.send_request("/get_server_info", seconds=20))
            length = info["internal_states"][0]["avg_spec_accept_length"]
            return float(length) if length else None
        return None
