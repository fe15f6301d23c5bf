# upstream: test/registered/unit/models
"""Shared experts never read, on a second stream, what routed experts overwrite in place.

The streams are mocked, so both parts run in the order in which they are issued. What the shared
experts get must be intact whichever comes first: memory of its own, copied before the streams part.
"""

import contextlib
import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.models import deepseek_v2, glm4_moe, glm4_moe_lite, hunyuan_v3
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=15, suite="base-a-test-cpu")


class _Experts:
    """Routed experts that write their sum into their input, as the Triton runner does."""

    quant_method = None
    supports_deferred_finalize = False

    def __init__(self, inplace):
        self.moe_runner_config = SimpleNamespace(inplace=inplace)

    def __call__(self, hidden_states, topk_output):
        self.memory = hidden_states.data_ptr()
        return hidden_states.fill_(100.0) if self.moe_runner_config.inplace else hidden_states + 1


class _SharedExperts:
    def __call__(self, hidden_states, *_, **__):
        self.memory, self.read = hidden_states.data_ptr(), hidden_states.clone()
        return torch.zeros_like(hidden_states)


class _Stream:
    """A stream that knows which memory exists when it starts to wait for another."""

    def __init__(self):
        self.forked = False

    def wait_stream(self, _):
        self.forked = True


class TestSharedExpertStreamRace(unittest.TestCase):
    def _run(self, module, name, method, inplace=True, **options):
        block = object.__new__(getattr(module, name))
        shared, experts, alt = _SharedExperts(), _Experts(inplace), _Stream()
        block.__dict__.update(
            alt_stream=alt,
            experts=experts,
            shared_mlp=shared,
            _forward_shared_experts=shared,
            gate=lambda *_: (None, None) if module is hunyuan_v3 else None,
            topk=lambda *_, **__: SimpleNamespace(format=None),
            num_fused_shared_experts=0,
            routed_scaling_factor=1.0,
            reduce_results=False,
            layer_id=0,
            is_nextn=True,
            tp_size=1,
            ep_size=1,
            _shared_expert_tp1=False,
            _maybe_quant_moe_input_once=lambda _: None,
            _should_quant_routed_input_mxfp8=lambda _: False,
        )

        class Input(torch.Tensor):
            def clone(self):
                self.copied_late = alt.forked
                return torch.Tensor.clone(self)

        hidden_states = torch.ones(2, 4).as_subclass(Input)
        hidden_states.copied_late = False
        with contextlib.ExitStack() as stack:
            for patched in ("current_stream", "stream"):
                stack.enter_context(mock.patch.object(torch.cuda, patched, mock.MagicMock()))
            for patched, value in {
                "get_forward": lambda: SimpleNamespace(
                    flashinfer_trtllm_bypass=False, defer_moe_finalize=False
                ),
                "get_exec": lambda: SimpleNamespace(moe=SimpleNamespace(enable_eplb=False)),
                "post_experts_all_reduce": lambda x: x,
                "maybe_fuse_routed_scale_and_shared_add": lambda _, x, y, __: x + y,
                "_is_cuda": True,
            }.items():
                if hasattr(module, patched):
                    stack.enter_context(mock.patch.object(module, patched, value))
            getattr(block, method)(hidden_states, **options)
        return shared, experts, hidden_states

    def _check(self, module, name, method="forward_normal_dual_stream", **options):
        shared, experts, hidden_states = self._run(module, name, method, **options)
        self.assertNotEqual(shared.memory, experts.memory, "both streams use the same memory")
        self.assertTrue(shared.read.eq(1).all(), "read what the routed experts wrote")
        self.assertFalse(hidden_states.copied_late, "copied while the other stream may write")
        shared, experts, _ = self._run(module, name, method, inplace=False, **options)
        self.assertEqual(shared.memory, experts.memory, "a copy that nobody needs")

    def test_deepseek(self):
        self._check(deepseek_v2, "DeepseekV2MoE")

    def test_glm4_moe(self):
        self._check(glm4_moe, "Glm4MoeSparseMoeBlock")

    def test_glm4_moe_lite(self):
        self._check(glm4_moe_lite, "Glm4MoeLiteSparseMoeBlock")

    def test_hunyuan_v3(self):
        self._check(hunyuan_v3, "HYV3MoEFused", "_forward_dual_stream")


if __name__ == "__main__":
    unittest.main()
