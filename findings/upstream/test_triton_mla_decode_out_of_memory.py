# upstream: test/registered/unit/layers/attention
"""The scratch of an MLA decode does not grow by 8 MiB for each request of a batch."""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=8, suite="base-a-test-cpu")

HEADS, WIDTH, SPLITS = 16, 512, 256  # DeepSeek-V2-Lite on an H100
MIB = 1 << 20


class TestTritonMlaScratch(unittest.TestCase):
    def _plan(self, requests, needed=SPLITS):
        backend = object.__new__(TritonAttnBackend)
        backend.__dict__.update(
            device="cpu",
            use_mla=True,
            num_head=HEADS,
            v_head_dim=WIDTH,
            swa_v_head_dim=None,
            max_kv_splits=SPLITS,
            split_tile_size=None,
            dcp_size=1,
            sliding_window_size=None,
            max_context_len=64,
            window_kv_indptr=None,
            lean_total_programs=1,
            lean_block_m=1,
            use_sliding_window_kv_pool=False,
            kv_indptr=torch.zeros(requests + 1, dtype=torch.int32),
            kv_index_translator=mock.MagicMock(),
            dllm_attention=None,
            token_to_kv_pool=None,
            get_num_kv_splits=lambda splits, *_, **__: splits.fill_(needed),
        )
        backend.init_forward_metadata(
            SimpleNamespace(
                batch_size=requests,
                forward_mode=ForwardMode.DECODE,
                spec_info=None,
                kv_loc_plan=None,
                seq_lens=torch.ones(requests, dtype=torch.int64),
                seq_lens_sum=requests,
                req_pool_indices=torch.arange(requests),
                out_cache_loc=torch.arange(requests),
                num_token_non_padded_cpu=requests,
            )
        )
        return backend.forward_metadata

    def test_a_large_batch(self):
        found = self._plan(1024)
        self.assertLessEqual(found.attn_logits.nbytes, 1024 * MIB)
        self.assertEqual(found.attn_lse.shape, found.attn_logits.shape[:3])
        self.assertLessEqual(found.num_kv_splits.max().item(), found.attn_logits.shape[2])
        found = self._plan(8)  # a small batch keeps its splits
        self.assertEqual(found.attn_logits.shape, (8, HEADS, SPLITS, WIDTH))
        self.assertEqual(found.num_kv_splits.max().item(), SPLITS)


if __name__ == "__main__":
    unittest.main()
