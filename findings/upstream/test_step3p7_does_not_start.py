# upstream: test/registered/unit/utils/test_step3p7_config.py
"""Step-3.7's configuration is read as SGLang's class."""

import json
import tempfile
import unittest
from pathlib import Path

from sglang.srt.configs.step3p7 import Step3p7Config
from sglang.srt.utils.hf_transformers_utils import get_config
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

CONFIG = {
    "model_type": "step3p7",
    "architectures": ["Step3p7ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_attention_groups": 2,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 8,
            "num_attention_groups": 2,
        },
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
    },
}


class TestStep3p7Config(CustomTestCase):
    def test_published_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(CONFIG))
            config = get_config(folder, trust_remote_code=False)
        self.assertIsInstance(config, Step3p7Config)
        self.assertEqual(config.text_config.num_attention_heads, 4)
        other = config.text_config.attention_other_setting
        self.assertEqual(other["num_attention_heads"], 8)


if __name__ == "__main__":
    unittest.main()
