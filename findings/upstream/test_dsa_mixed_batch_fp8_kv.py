# upstream: test/registered/unit/layers/attention
"""A chunk that is mixed with decodes takes the prefill path that dequantizes an FP8 pool."""

import unittest

from sglang.srt.layers.attention.dsa_backend import (
    DeepseekSparseAttnBackend,
    TopkTransformMethod,
)
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=8, suite="base-a-test-cpu")


class TestDsaMixedBatch(unittest.TestCase):
    def _choose(self, mode, fp8=True, prefill="flashmla_sparse"):
        backend = object.__new__(DeepseekSparseAttnBackend)
        backend.__dict__.update(dsa_kv_cache_store_fp8=fp8, dsa_prefill_impl=prefill)
        return backend.get_topk_transform_method(mode)

    def test_prefills_dequantize_and_others_read_pages(self):
        for mode in (ForwardMode.EXTEND, ForwardMode.MIXED):
            self.assertEqual(self._choose(mode), TopkTransformMethod.RAGGED, mode)
        for mode in (ForwardMode.DECODE, ForwardMode.TARGET_VERIFY, ForwardMode.DRAFT_EXTEND_V2):
            self.assertEqual(self._choose(mode), TopkTransformMethod.PAGED, mode)
        for options in ({"fp8": False}, {"prefill": "flashmla_kv"}):
            found = self._choose(ForwardMode.MIXED, **options)
            self.assertEqual(found, TopkTransformMethod.PAGED, options)


if __name__ == "__main__":
    unittest.main()
