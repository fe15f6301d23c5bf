# upstream: test/registered/unit/managers
"""A turn of a session goes on from the answer that the client got."""

import unittest
from array import array
from unittest.mock import MagicMock

from sglang.srt.managers.io_struct import SessionParams
from sglang.srt.managers.schedule_batch import FINISH_MATCHED_TOKEN
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.session.session_controller import Session
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=5, suite="base-a-test-cpu")

STOP = 22


class TestSessionKeepsTokensBehindTheStop(unittest.TestCase):
    def _create(self, session, name, tokens, **parameters):
        turn = MagicMock(
            rid=name,
            input_ids=array("q", tokens),
            sampling_params=SamplingParams(max_new_tokens=8),
            session_params=SessionParams(id="s", **parameters),
            return_logprob=False,
            return_hidden_states=False,
            mm_inputs=None,
        )
        return session.create_req(turn, None, 1000)

    def test_next_turn(self):
        session = Session(0, "s")
        first = self._create(session, "a", [1, 2])
        # One step of speculative decoding accepted two tokens behind the stop.
        first.output_ids = array("q", [21, STOP, 31, 32])
        first.finished_reason, first.finished_len = FINISH_MATCHED_TOKEN(STOP), 2
        second = self._create(session, "b", [3], rid="a")
        self.assertEqual(list(second.origin_input_ids), [1, 2, 21, STOP, 3])


if __name__ == "__main__":
    unittest.main()
