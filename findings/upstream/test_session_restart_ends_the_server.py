# upstream: test/registered/unit/managers
"""A turn that replaces all turns of a session before it begins anew."""

import unittest
from array import array
from unittest.mock import MagicMock

from sglang.srt.managers.io_struct import SessionParams
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.session.session_controller import Session
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=5, suite="base-a-test-cpu")


def make_turn(rid, tokens, **parameters):
    return MagicMock(
        rid=rid,
        input_ids=array("q", tokens),
        sampling_params=SamplingParams(max_new_tokens=4),
        session_params=SessionParams(id="s", **parameters),
        return_logprob=False,
        return_hidden_states=False,
        mm_inputs=None,
    )


class TestSessionRestartEndsTheServer(unittest.TestCase):
    def test_restart(self):
        session = Session(0, "s")
        turns = [session.create_req(make_turn(rid, [1, 2]), None, 1000) for rid in ("a", "b")]
        try:
            again = session.create_req(make_turn("c", [3], replace=True), None, 1000)
        except RuntimeError as error:
            self.fail(f"the scheduler would end: {error}")
        self.assertEqual(list(again.origin_input_ids), [3])
        self.assertEqual(list(session.req_nodes), ["c"])
        # The turns that it replaces end.
        self.assertTrue(all(turn.to_finish is not None for turn in turns))


if __name__ == "__main__":
    unittest.main()
