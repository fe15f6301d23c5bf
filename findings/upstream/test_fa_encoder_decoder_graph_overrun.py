# upstream: test/registered/unit/layers/attention
"""The text of an encoder-decoder model is gathered inside its row of req_to_token."""

import unittest
from types import SimpleNamespace

import torch
from sglang.srt.layers.attention.flashattention_backend import (
    FlashAttentionBackend,
    FlashAttentionMetadata,
)
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=8, suite="base-a-test-cpu")

CONTEXT, SPARE = 16, 4  # a row has SPARE columns beyond the context
IMAGE, TEXT = 6, 3  # tokens of the first request; the second has text alone


class TestFlashAttentionEncoder(unittest.TestCase):
    def setUp(self):
        self.table = torch.arange(2 * (CONTEXT + SPARE), dtype=torch.int32).view(2, -1)
        self.backend = object.__new__(FlashAttentionBackend)
        self.backend.__dict__.update(
            req_to_token=self.table,
            req_to_token_pool=SimpleNamespace(req_to_token=self.table),
            max_context_len=CONTEXT,
            is_encoder_decoder=True,
            topk=1,
            page_size=1,
            speculative_num_draft_tokens=None,
            attention_chunk_size=None,
            use_sliding_window_kv_pool=False,
            has_local_attention=False,
            use_mla=False,
            device="cpu",
            local_attn_builder=None,
            attn_cp_size=1,
            needs_cpu_seq_lens=False,
            _kv_shard_pool=None,
            _unified_dense=False,
            _get_scheduler_metadata=None,
            has_swa=False,
            is_prefill_aware_swa=False,
            _decode_uses_static_max_seqlen_k=False,
            _sched_meta_buf=None,
            _set_decode_page_metadata=lambda *_, **__: None,
            kv_index_translator=SimpleNamespace(is_translating=False),
        )

    def _check(self, metadata, texts):
        for row, (image, text) in enumerate(texts):
            found = metadata.page_table[row, :text].tolist()
            self.assertEqual(found, self.table[row, image : image + text].tolist())

    def test_graph(self):
        metadata = FlashAttentionMetadata()
        metadata.max_seq_len_k = CONTEXT
        metadata.page_table = torch.zeros(2, CONTEXT, dtype=torch.int32)
        metadata.cache_seqlens_int32 = torch.zeros(2, dtype=torch.int32)
        metadata.cu_seqlens_k = torch.zeros(3, dtype=torch.int32)
        metadata.encoder_lens_int32 = torch.zeros(2, dtype=torch.int32)
        metadata.encoder_cu_seqlens_k = torch.zeros(3, dtype=torch.int32)
        metadata.encoder_page_table = torch.zeros(2, CONTEXT, dtype=torch.int32)
        self.backend.decode_cuda_graph_metadata = {2: metadata}
        self.backend._apply_cuda_graph_metadata(
            plan=None,
            bs=2,
            req_pool_indices=torch.tensor([0, 1]),
            seq_lens=torch.tensor([TEXT, 9]),
            encoder_lens=torch.tensor([IMAGE, 0]),
            forward_mode=ForwardMode.DECODE,
            spec_info=None,
            seq_lens_cpu=None,
        )
        self._check(metadata, [(IMAGE, TEXT), (0, 9)])

    def test_eager_beside_a_long_text(self):
        batch = SimpleNamespace(
            batch_size=2,
            forward_mode=ForwardMode.DECODE,
            spec_info=None,
            kv_loc_plan=None,
            seq_lens=torch.tensor([TEXT, CONTEXT]),
            seq_lens_cpu=torch.tensor([TEXT, CONTEXT]),
            encoder_lens=torch.tensor([IMAGE, 0]),
            req_pool_indices=torch.tensor([0, 1]),
            out_cache_loc=None,
        )
        self.backend.init_forward_metadata(batch)
        self._check(self.backend.forward_metadata, [(IMAGE, TEXT), (0, CONTEXT)])


if __name__ == "__main__":
    unittest.main()
