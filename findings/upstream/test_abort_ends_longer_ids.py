# upstream: test/registered/unit/managers
"""An abort ends the request of its id, and none whose id only begins with it."""

import unittest
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.dllm.mixin.scheduler import DllmManager
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.scheduler import Scheduler
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=5, suite="base-a-test-cpu")

RIDS = ["batch_1", "batch_10", "batch_11"]


def make_request(rid):
    request = MagicMock(rid=rid, to_finish=None)
    request.finished.return_value = False
    request.kv.holds_mamba = False
    return request


# What is answered needs a server's settings.
@patch("sglang.srt.managers.scheduler._make_abort_req", new=MagicMock())
class TestAbortEndsLongerIds(unittest.TestCase):
    def _make_scheduler(self, waiting=(), running=(), chunked=None):
        scheduler = MagicMock(chunked_req=chunked, mm_receiver=None, dllm_config=None)
        scheduler._pending_chunked_abort_req = None
        scheduler.disaggregation_mode = DisaggregationMode.NULL
        scheduler.waiting_queue = list(waiting)
        scheduler.collect_inflight_reqs.return_value = list(running)
        return scheduler

    def test_waiting_requests(self):
        scheduler = self._make_scheduler(waiting=map(make_request, RIDS))
        Scheduler.abort_request(scheduler, AbortReq(rid="batch_1"))
        left = [request.rid for request in scheduler.waiting_queue]
        self.assertEqual(left, ["batch_10", "batch_11"])

    def test_running_requests(self):
        scheduler = self._make_scheduler(running=map(make_request, RIDS))
        Scheduler.abort_request(scheduler, AbortReq(rid="batch_1"))
        requests = scheduler.collect_inflight_reqs.return_value
        ended = [request.rid for request in requests if request.to_finish]
        self.assertEqual(ended, ["batch_1"])

    def test_a_request_in_chunks(self):
        chunked = make_request("batch_10")
        scheduler = self._make_scheduler(chunked=chunked)
        Scheduler.abort_request(scheduler, AbortReq(rid="batch_1"))
        self.assertIsNone(scheduler._pending_chunked_abort_req)
        Scheduler.abort_request(scheduler, AbortReq(rid="batch_10"))
        self.assertIs(scheduler._pending_chunked_abort_req, chunked)

    def test_requests_of_a_diffusion_model(self):
        requests = [make_request(rid) for rid in RIDS]
        manager = SimpleNamespace(waiting_queue=requests, staging_queue=[])
        aborted = DllmManager.pop_aborted_reqs(manager, False, "batch_1")
        self.assertEqual([request.rid for request in aborted], ["batch_1"])

    def test_abort_all(self):
        scheduler = self._make_scheduler(waiting=map(make_request, RIDS))
        Scheduler.abort_request(scheduler, AbortReq(abort_all=True))
        self.assertEqual(scheduler.waiting_queue, [])


if __name__ == "__main__":
    unittest.main()
