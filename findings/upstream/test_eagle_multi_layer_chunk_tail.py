# upstream: test/registered/unit/speculative
"""The first layer of a multi-layer EAGLE draft reads a chunked prompt one token ahead."""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.speculative import multi_layer_eagle_worker_v2 as worker_module
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=8, suite="base-a-test-cpu")


class _Draft:
    """A draft model that records what it reads."""

    req_to_token_pool = token_to_kv_pool = canary_manager = None

    def forward(self, batch):
        self.read = batch.input_ids.tolist()
        logits = torch.zeros(len(batch.extend_seq_lens), 8)
        return SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=logits, hidden_states=None)
        )


def _rotate_on_cpu(input_ids, starts, lengths, last):  # the Triton kernel, for a CPU
    for index, start in enumerate(starts.tolist()):
        length, token = int(lengths[index]), last.view(-1)[index]
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        input_ids[start + length - 1] = token


class TestMultiLayerEagleChunkTail(unittest.TestCase):
    def _read(self, next_prompt_token):
        draft, worker = _Draft(), object.__new__(worker_module.MultiLayerEagleDraftWorker)
        worker.__dict__.update(
            topk=1,
            speculative_num_steps=1,
            speculative_algorithm=SpeculativeAlgorithm.EAGLE,
            model_config=SimpleNamespace(vocab_size=1000),
            draft_runner_list=[draft],
            chain_mtp_hidden_states=False,
            use_rejection_sampling=False,
            req_to_hidden_states_pool=None,
            _apply_deferred_mamba_init_to_draft_pools=lambda batch: None,
            _seed_boundary_kv_stash=lambda batch, hidden: None,
        )
        chunked = object()
        batch = SimpleNamespace(
            forward_mode=ForwardMode.EXTEND,
            input_ids=torch.tensor([1, 2, 11, 12]),  # a chunk, and another whole prompt
            reqs=[chunked, object()],
            chunked_req=chunked,
            chunked_req_next_prompt_token=next_prompt_token,
        )
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.EXTEND,
            batch_size=2,
            input_ids=batch.input_ids,
            req_pool_indices=torch.tensor([0, 1]),
            seq_lens=torch.tensor([2, 2]),
            out_cache_loc=torch.arange(4),
            seq_lens_sum=4,
            extend_seq_lens=torch.tensor([2, 2]),
            extend_start_loc=torch.tensor([0, 2]),
        )
        with (
            mock.patch.object(ForwardBatch, "init_new", lambda *_, **__: forward_batch),
            mock.patch.object(worker_module, "rotate_input_ids", _rotate_on_cpu),
            mock.patch.multiple(
                worker_module,
                maybe_detect_oob=mock.DEFAULT,
                maybe_detect_nan=mock.DEFAULT,
                maybe_detect_inf=mock.DEFAULT,
            ),
            torch.compiler.set_stance("force_eager"),
        ):
            worker._draft_extend_for_prefill(
                batch, torch.zeros(4, 2), next_token_ids=torch.tensor([998, 999])
            )
        return draft.read

    def test_the_end_of_a_chunk(self):
        self.assertEqual(self._read(next_prompt_token=3), [2, 3, 12, 999])
        # The end of the prompt: there the sampled token is next.
        self.assertEqual(self._read(next_prompt_token=None), [2, 998, 12, 999])


if __name__ == "__main__":
    unittest.main()
