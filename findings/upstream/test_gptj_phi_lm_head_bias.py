# upstream: test/registered/unit/layers/test_lm_head_bias.py
"""The bias of a ParallelLMHead reaches the logits (GPT-J, Phi, PhiMoE)."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models import phimoe
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestLmHeadBias(CustomTestCase):
    @classmethod
    def setUpClass(cls):
        init_single_process_dist(master_port=0)

    def test_bias_is_added_to_the_logits(self):
        torch.manual_seed(0)
        processor = LogitsProcessor(SimpleNamespace(vocab_size=64))
        head = ParallelLMHead(64, 16, bias=True)
        torch.nn.init.normal_(head.weight)
        torch.nn.init.normal_(head.bias)
        hidden = torch.randn(3, 16)

        output = processor(None, hidden, head, LogitsMetadata(ForwardMode.DECODE))

        expected = torch.nn.functional.linear(hidden, head.weight, head.bias)
        torch.testing.assert_close(output.next_token_logits, expected)

    def test_phimoe_has_a_bias_where_its_config_has_one(self):
        for lm_head_bias in (False, True):
            config = phimoe.PhiMoEConfig(vocab_size=64, hidden_size=16, lm_head_bias=lm_head_bias)
            with patch.object(phimoe, "PhiMoEModel", return_value=torch.nn.Identity()):
                model = phimoe.PhiMoEForCausalLM(config)
            self.assertEqual(model.lm_head.bias is not None, lm_head_bias)


if __name__ == "__main__":
    unittest.main()
