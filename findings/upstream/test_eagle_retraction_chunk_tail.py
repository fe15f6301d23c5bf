# upstream: test/registered/unit/speculative
"""The token after a chunk, for the EAGLE draft, comes from prompt and answer alike."""

import unittest
from array import array

from sglang.srt.managers.schedule_batch import (
    Req,
    _compute_chunked_req_next_prompt_token,
)
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=5, suite="base-a-test-cpu")

PROMPT, ANSWER, IMAGE_HASH = [11, 12], [21, 22], 5000


class TestEagleRetractionChunkTail(unittest.TestCase):
    def _next_token(self, chunk_end, prompt=PROMPT):
        # A retracted request: it has generated ANSWER, and prefills all of it again.
        req = Req("0", "", array("q", prompt), SamplingParams(max_new_tokens=8))
        req.output_ids = array("q", ANSWER)
        req.init_next_round_input()
        if hasattr(req, "set_extend_range"):
            req.set_extend_range(0, chunk_end)
        else:
            req.extend_end = chunk_end
        return _compute_chunked_req_next_prompt_token(req, vocab_size=1000)

    def test_every_chunk(self):
        found = [self._next_token(end) for end in range(1, 5)]
        self.assertEqual(found, [12, 21, 22, None])
        # A placeholder of an image is no token.
        self.assertIsNone(self._next_token(1, prompt=[11, IMAGE_HASH]))


if __name__ == "__main__":
    unittest.main()
