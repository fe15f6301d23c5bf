# upstream: test/registered/unit/models/test_apertus_mlp.py
"""Apertus: the activation has the dtype of the model."""

import unittest

import torch
from sglang.srt.models.apertus import ApertusMLP
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestApertusMLP(CustomTestCase):
    def test_mlp_in_each_dtype(self):
        init_single_process_dist(master_port=0)
        before = torch.get_default_dtype()
        self.addCleanup(torch.set_default_dtype, before)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            torch.set_default_dtype(dtype)  # as a loader does
            mlp = ApertusMLP(16, 32, "xielu")
            for parameter in mlp.parameters():
                self.assertEqual(parameter.dtype, dtype)
            torch.nn.init.normal_(mlp.up_proj.weight)
            torch.nn.init.normal_(mlp.down_proj.weight)
            self.assertEqual(mlp(torch.randn(3, 16)).dtype, dtype)


if __name__ == "__main__":
    unittest.main()
