# upstream: test/registered/unit/managers
"""A streaming session takes one turn at a time, also behind a turn that it refused."""

import unittest
from array import array
from unittest.mock import MagicMock, patch

from sglang.srt.managers.io_struct import SessionParams
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.session.session_controller import Session
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=5, suite="base-a-test-cpu")


# A turn is refused by the first rank.
@patch("sglang.srt.managers.schedule_batch.get_parallel", new=MagicMock(), create=True)
class TestRefusedTurnFreesTheSession(unittest.TestCase):
    def _create(self, session, rid):
        turn = MagicMock(
            rid=rid,
            input_ids=array("q", [1, 2]),
            sampling_params=SamplingParams(max_new_tokens=4),
            session_params=SessionParams(id="s"),
            return_logprob=False,
            return_hidden_states=False,
            mm_inputs=None,
        )
        return session.create_req(turn, None, 1000)

    def test_refused_turn(self):
        session = Session(0, "s", streaming=True)
        first, second = self._create(session, "a"), self._create(session, "b")
        self.assertIs(first.session, session)
        self.assertIsNotNone(second.to_finish)
        # The scheduler ends a refused turn, and tells the session that it names.
        if second.session is not None:
            second.session.abort_req()
        third = self._create(session, "c")
        self.assertIsNotNone(third.to_finish, "two turns run at a time")


if __name__ == "__main__":
    unittest.main()
