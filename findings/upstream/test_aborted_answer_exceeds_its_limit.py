# upstream: test/registered/unit/managers
"""An aborted request answers with at most max_new_tokens, as any other."""

import unittest
from array import array

from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=5, suite="base-a-test-cpu")


class TestAbortedAnswerExceedsItsLimit(unittest.TestCase):
    def _end(self, count):
        req = Req("0", "", array("q", [1, 2]), SamplingParams(max_new_tokens=3))
        # The last step of speculative decoding accepted three tokens, and an abort came before.
        req.output_ids = array("q", [21, 22, 23, 24][:count])
        req.to_finish = FINISH_ABORT()
        req.update_finish_state(3)
        self.assertIsInstance(req.finished_reason, FINISH_ABORT)
        return list(req.output_ids_through_stop)

    def test_answer(self):
        self.assertEqual(self._end(4), [21, 22, 23])
        self.assertEqual(self._end(2), [21, 22])


if __name__ == "__main__":
    unittest.main()
