# upstream: test/registered/unit/layers/attention
"""The XPU backend's tree verification names slots of the sliding-window pool to its window layers.

The kernel that joins the two page tables is replaced by a recorder of what it gets.
"""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.layers.attention import xpu_backend
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=8, suite="base-a-test-cpu")


class TestXpuSwaPageTable(unittest.TestCase):
    def _join(self, own_pool):
        backend = object.__new__(xpu_backend.XPUAttentionBackend)
        backend.__dict__.update(
            page_size=1,
            speculative_num_draft_tokens=1,
            use_sliding_window_kv_pool=own_pool,
            token_to_kv_pool=SimpleNamespace(
                translate_loc_from_full_to_swa=lambda slots: slots.long() + 100
            ),
        )
        prefix, draft = (
            SimpleNamespace(
                page_table=torch.tensor([[slot]], dtype=torch.int32),
                cache_seqlens_int32=torch.tensor([1], dtype=torch.int32),
                cu_seqlens_q=torch.tensor([0, 1], dtype=torch.int32),
                max_seq_len_k=1,
            )
            for slot in (5, 6)
        )
        with mock.patch.object(xpu_backend, "prepare_swa_spec_page_table_triton") as join:
            backend._init_sliding_window_attn_spec_metadata(prefix, draft)
        return [(table.item(), table.dtype) for table in join.call_args.args[1:3]]

    def test_slots_of_the_layers_own_pool(self):
        self.assertEqual(self._join(True), [(105, torch.int32), (106, torch.int32)])
        # One pool for all layers.
        self.assertEqual(self._join(False), [(5, torch.int32), (6, torch.int32)])


if __name__ == "__main__":
    unittest.main()
