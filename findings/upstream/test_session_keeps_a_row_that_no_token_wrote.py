# upstream: test/registered/unit/managers
"""With speculative decoding a streaming session keeps only rows that were written."""

import unittest
from array import array
from unittest.mock import MagicMock

from sglang.srt.managers.schedule_batch import FINISH_LENGTH, ReqKvInfo
from sglang.srt.session.session_controller import Session
from sglang.srt.session.streaming_session import SessionSlot, StreamingSession
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=5, suite="base-a-test-cpu")

PROMPT, ANSWER, RESERVED = 2, 4, 8


class TestSessionKeepsARowThatNoTokenWrote(unittest.TestCase):
    def _count_kept_rows(self, is_eagle, allocated):
        session = Session(0, "s", streaming=True)
        cache = MagicMock(page_size=1)
        cache.tree_core.is_eagle = is_eagle
        owner = StreamingSession(cache)
        kv = ReqKvInfo()
        kv.req_pool_idx, kv.kv_allocated_len = 1, allocated
        kv.kv_committed_len = PROMPT + ANSWER - 1
        owner.slots["s"] = SessionSlot(kv=kv)
        req = MagicMock(session=session, kv=kv, finished_reason=FINISH_LENGTH(ANSWER))
        req.origin_input_ids = array("q", range(PROMPT))
        req.output_ids, req.finished_len = array("q", range(ANSWER)), ANSWER
        req.full_untruncated_fill_ids = array("q")
        self.assertTrue(owner.try_cache_finished_req(req))
        return kv.kv_committed_len

    def test_kept_rows(self):
        # The last token was sampled, and no step has written its row.
        written = PROMPT + ANSWER - 1
        self.assertEqual(self._count_kept_rows(True, PROMPT + ANSWER + RESERVED), written)
        self.assertEqual(self._count_kept_rows(False, written), written)


if __name__ == "__main__":
    unittest.main()
