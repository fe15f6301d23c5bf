# upstream: test/registered/unit/layers/attention
"""A sliding-window decode of the Triton backend reads its token and the whole window before it.

Prefill's mask lets a query see sliding_window_size keys before it and itself. The kernel that packs
slots is replaced by torch, so that the metadata can be built on a CPU.
"""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.layers.attention import triton_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=8, suite="base-a-test-cpu")

WINDOW, CONTEXT = 4, 16
LENGTHS = torch.tensor([3, 9])  # shorter and longer than the window
EXPECTED = [0, 1, 2, *(CONTEXT + position for position in range(4, 9))]


class _Translator:
    window_kv_kind = None

    def pack_read_stream(self, plan, *, seq_lens, indptr, out, kv_start_idx=None, **_):
        for request, length in enumerate(seq_lens.tolist()):
            start = 0 if kv_start_idx is None else int(kv_start_idx[request])
            slots = torch.arange(start, start + length) + request * CONTEXT
            out[int(indptr[request]) : int(indptr[request + 1])] = slots
        return True


def _make_backend():
    backend = object.__new__(triton_backend.TritonAttnBackend)
    backend.__dict__.update(
        device="cpu",
        max_context_len=CONTEXT,
        sliding_window_size=WINDOW,
        kv_index_translator=_Translator(),
        token_to_kv_pool=None,
        kv_indptr=torch.zeros(3, dtype=torch.int32),
        window_kv_indptr=torch.zeros(3, dtype=torch.int32),
        get_num_kv_splits=lambda *_: None,
        num_head=1,
        v_head_dim=1,
        swa_v_head_dim=None,
        max_kv_splits=1,
        num_draft_tokens=None,
        dcp_size=1,
        lean_total_programs=1,
        lean_block_m=1,
        use_sliding_window_kv_pool=False,
        dllm_attention=None,
        skip_prefill=True,
        is_draft_runner=True,
        enable_deterministic=False,
        static_kv_splits=True,
    )
    return backend


class TestTritonSwaDecodeWindow(unittest.TestCase):
    def test_eager_decode(self):
        backend = _make_backend()
        backend.init_forward_metadata(
            SimpleNamespace(
                batch_size=2,
                forward_mode=ForwardMode.DECODE,
                spec_info=None,
                kv_loc_plan=None,
                seq_lens=LENGTHS,
                seq_lens_sum=int(LENGTHS.sum()),
                req_pool_indices=torch.tensor([0, 1]),
                out_cache_loc=torch.tensor([2, 24]),
                num_token_non_padded_cpu=2,
            )
        )
        self.assertEqual(backend.forward_metadata.window_kv_indices.tolist(), EXPECTED)

    def test_graph_decode(self):
        backend = _make_backend()
        backend.init_cuda_graph_state(max_bs=2, max_num_tokens=2)
        backend._update_decode_kv_buffers(None, 2, LENGTHS, torch.tensor([0, 1]))
        found = backend.cuda_graph_window_kv_indices[: int(backend.window_kv_indptr[-1])]
        self.assertEqual(found.tolist(), EXPECTED)

    def test_a_graph_s_buffer_holds_full_windows(self):
        backend = _make_backend()
        backend.init_cuda_graph_state(max_bs=2, max_num_tokens=2)
        backend._update_decode_kv_buffers(None, 2, torch.tensor([9, 9]), torch.tensor([0, 1]))
        self.assertGreaterEqual(len(backend.cuda_graph_window_kv_indices), 2 * (WINDOW + 1))

    def test_steps_of_a_draft(self):
        runner = mock.MagicMock(sliding_window_size=WINDOW, device="cpu")
        runner.req_to_token_pool.size = 2
        runner.req_to_token_pool.req_to_token = torch.zeros(2, CONTEXT)
        runner.model_config.get_max_num_attention_heads.return_value = 1
        with (
            mock.patch.multiple(
                triton_backend,
                TritonAttnBackend=mock.DEFAULT,
                get_schedule=lambda: SimpleNamespace(page_size=1),
                resolve_draft_decode_window=lambda _: (None, None),
            ),
            get_parallel().override(attn_tp_size=1),
        ):
            draft = triton_backend.TritonMultiStepDraftBackend(
                runner, topk=1, speculative_num_steps=2
            )
        draft.kv_index_translator.window_kv_kind = None
        buffer = torch.zeros(2, 2 * (WINDOW + 1), dtype=torch.int64)
        batch = SimpleNamespace(
            batch_size=2,
            kv_loc_plan=None,
            req_pool_indices=torch.tensor([0, 1]),
            seq_lens=LENGTHS,
            positions=LENGTHS,
        )
        kernel = mock.MagicMock()
        with mock.patch.object(triton_backend, "generate_draft_decode_window_kv_indices", kernel):
            draft._fill_window_rail(batch, buffer, bs=2)
        (args, _) = kernel.__getitem__.return_value.call_args
        self.assertEqual(args[13], WINDOW + 1, "window of the kernel that packs slots")


if __name__ == "__main__":
    unittest.main()
