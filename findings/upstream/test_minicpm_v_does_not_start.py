# upstream: test/registered/unit/models/test_minicpmv_wrapper.py
"""MiniCPMV is no module: what the loader sets on it must reach the model that `eval()` returns."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_loader import loader
from sglang.srt.models import minicpmv
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class Version(torch.nn.Module):
    def __init__(self, config, quant_config, prefix):
        super().__init__()


class TestMiniCPMVWrapper(CustomTestCase):
    def test_loaded_model_has_the_shared_experts_config(self):
        init_single_process_dist(master_port=0)
        config = SimpleNamespace(version="2.6")
        model_config = SimpleNamespace(hf_config=config, hf_text_config=config)
        with (
            patch.dict(minicpmv._SUPPORT_VERSION, {(2, 6): Version}),
            patch.object(
                loader,
                "get_model_architecture",
                return_value=(minicpmv.MiniCPMV, "MiniCPMV"),
            ),
        ):
            model = loader._initialize_model(model_config, LoadConfig(), None)
        # A loader ends with `return model.eval()`.
        loaded = model.eval()
        self.assertIs(getattr(loaded, "shared_experts_config", None), model.shared_experts_config)


if __name__ == "__main__":
    unittest.main()
