# upstream: test/registered/unit/mem_cache
"""A request at the end of the context reserves its next drafts inside its own req_to_token row."""

import unittest
from types import SimpleNamespace
from unittest import mock

from sglang.srt.mem_cache import allocation_sizing
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=5, suite="base-a-test-cpu")

CONTEXT = 64


class TestEagleReqToTokenRow(unittest.TestCase):
    def _check(self, *, topk, steps, draft_tokens, page_size):
        spec = SimpleNamespace(
            speculative_algorithm="EAGLE",
            speculative_eagle_topk=topk,
            speculative_num_steps=steps,
            speculative_num_draft_tokens=draft_tokens,
            max_speculative_num_draft_tokens=draft_tokens,
        )
        patched = {
            "get_spec": lambda: spec,
            "get_schedule": lambda: SimpleNamespace(page_size=page_size),
            "max_speculative_num_draft_tokens": lambda: draft_tokens,
        }
        if hasattr(allocation_sizing, "get_parallel"):
            patched["get_parallel"] = lambda: SimpleNamespace(attn_dcp_size=1)
        with mock.patch.multiple(allocation_sizing, **patched):
            row = CONTEXT + allocation_sizing.get_req_to_token_extra_context_len()
            reserve = allocation_sizing.get_alloc_reserve_per_decode()
        last = CONTEXT - 1  # tokens of a request that may still decode
        end = -(-(last + reserve) // page_size) * page_size
        self.assertLessEqual(end, row, "the decode reserve ends in the next request's row")

    def test_chain(self):
        for page_size in (16, 1):
            self._check(topk=1, steps=5, draft_tokens=6, page_size=page_size)

    def test_tree(self):
        for page_size in (16, 1):
            self._check(topk=4, steps=5, draft_tokens=16, page_size=page_size)


if __name__ == "__main__":
    unittest.main()
