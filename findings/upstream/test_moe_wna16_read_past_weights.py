# upstream: test/registered/unit/layers/moe
"""fused_moe_kernel_gptq_awq reads nothing behind the weights of the last expert.

Triton's interpreter runs the kernel on a CPU. Accesses outside of its tensors are listed, not made.
"""

import unittest
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from sglang.kernels.ops.moe.fused_moe_triton_kernels import fused_moe_kernel_gptq_awq
from sglang.test.ci.ci_register import register_cpu_ci
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


def list_stray_accesses(kernel, grid, **arguments):
    """Run one launch; return the addresses outside of all tensors that it reads or writes."""
    ranges = [
        (value.data_ptr(), value.data_ptr() + value.nbytes)
        for value in arguments.values()
        if torch.is_tensor(value)
    ]
    stray, builder = set(), interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def find_inside(pointers, mask):
        inside = np.zeros(pointers.data.shape, dtype=bool)
        for start, end in ranges:
            inside |= (pointers.data >= start) & (pointers.data < end)
        stray.update(pointers.data[mask.data.astype(bool) & ~inside].tolist())
        return interpreter.TensorHandle(mask.data.astype(bool) & inside, tl.int1)

    def checked_load(self, pointers, mask, *rest):
        return load(self, pointers, find_inside(pointers, mask), *rest)

    def checked_store(self, pointers, value, mask, *rest):
        return store(self, pointers, value, find_inside(pointers, mask), *rest)

    def call_device_function(self, *args, **options):
        return interpreter.InterpretedFunction(self.fn)(*args, **options)

    with (
        mock.patch.multiple(
            builder, create_masked_load=checked_load, create_masked_store=checked_store
        ),
        mock.patch.object(JITFunction, "__call__", call_device_function),
    ):
        interpreter.InterpretedFunction(kernel.fn)[grid](**arguments)
    return stray


class TestMoeWna16(unittest.TestCase):
    def _check(self, depth, bits):
        experts, width, group, block = 2, 16, 8, 16
        per_byte = 8 // bits
        weights = torch.full((experts, width, depth // per_byte), 0x99, dtype=torch.uint8)
        scales = torch.ones(experts, width, depth // group)
        names = fused_moe_kernel_gptq_awq.arg_names
        tokens, output = torch.ones(1, depth), torch.zeros(1, 1, width)
        stray = list_stray_accesses(
            fused_moe_kernel_gptq_awq,
            (1, 1, 1),
            a_ptr=tokens, b_ptr=weights, c_ptr=output, b_scale_ptr=scales, b_zp_ptr=None,
            topk_weights_ptr=None,
            sorted_token_ids_ptr=torch.tensor([0] + [1] * 15, dtype=torch.int32),
            expert_ids_ptr=torch.tensor([experts - 1], dtype=torch.int32),
            num_tokens_post_padded_ptr=torch.tensor([16], dtype=torch.int32),
            N=width, K=depth, EM=16, num_valid_tokens=1,
            stride_am=tokens.stride(0), stride_ak=1,
            stride_be=weights.stride(0), stride_bk=1, stride_bn=weights.stride(1),
            stride_cm=width, stride_cn=1,
            stride_bse=scales.stride(0), stride_bsk=1, stride_bsn=scales.stride(1),
            stride_bze=0, stride_bzk=0, stride_bzn=0,
            group_size=group, BLOCK_SIZE_M=16, BLOCK_SIZE_N=16, BLOCK_SIZE_K=block,
            GROUP_SIZE_M=1, MUL_ROUTED_WEIGHT=False, top_k=1, compute_type=tl.float32,
            has_zp=False, use_int4_w4a16=bits == 4, use_int8_w8a16=bits == 8,
            even_Ks=depth % block == 0,
            **({"filter_expert": True} if "filter_expert" in names else {}),  # up to 0.5.18
        )  # fmt: skip
        value = 9 - 8 if bits == 4 else 0x99 - 128
        self.assertEqual(output.unique().tolist(), [float(depth * value)])
        end = weights.data_ptr() + weights.nbytes
        self.assertEqual(sorted(address - end for address in stray), [], "bytes past the weights")

    def test_4_bits(self):
        for depth in (32, 24):  # whole blocks, and half a block more
            self._check(depth, bits=4)

    def test_8_bits(self):
        for depth in (32, 24):
            self._check(depth, bits=8)


if __name__ == "__main__":
    unittest.main()
