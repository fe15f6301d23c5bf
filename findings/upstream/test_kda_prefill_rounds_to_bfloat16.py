# upstream: test/registered/unit/kernels
"""KDA's prefill of a float32 model keeps float32 between the blocks of a chunk."""

import unittest
from unittest import mock

import numpy as np
import torch
import triton
import triton.language as tl
from sglang.kernels.ops.attention.fla import chunk_intra
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

register_cpu_ci(est_time=10, suite="base-a-test-cpu")  # interpreted

TOKENS, WIDTH, BLOCK = 64, 32, 16


@triton.jit
def exp2(x):
    return tl.exp2(x)


def dot(builder, a, b, sums, *rest):
    """Multiply as a GPU does: the interpreter takes the bits of bfloat16 for integers."""
    values = [
        (x.data.astype(np.uint32) << 16).view(np.float32) if x.dtype == tl.bfloat16 else x.data
        for x in (a, b)
    ]
    return TensorHandle(np.matmul(*values) + sums.data, tl.float32)


def call_device_function(function, *args, **options):
    return InterpretedFunction(function.fn)(*args, **options)


@mock.patch.object(JITFunction, "__call__", call_device_function)
@mock.patch.object(InterpreterBuilder, "create_dot", dot)
@mock.patch.object(chunk_intra, "exp2", exp2)  # the interpreter knows no alias of a builtin
def compute_products(dtype):
    """Return gated products of queries and keys in a chunk, and what they should be."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, TOKENS, 1, WIDTH).to(dtype) for _ in range(3))
    gates = -torch.rand(1, TOKENS, 1, WIDTH).cumsum(1)
    products = torch.zeros(1, TOKENS, 1, TOKENS, dtype=dtype)
    inverse, diagonal = torch.zeros_like(products), torch.zeros(1, TOKENS, 1, BLOCK)
    kernel = chunk_intra.chunk_kda_fwd_kernel_inter_solve_fused
    while not isinstance(kernel, (InterpretedFunction, JITFunction)):  # without its tuning
        kernel = kernel.fn
    InterpretedFunction(kernel.fn)[(1, 1)](
        q=q, k=k, g=gates, beta=torch.ones(1, TOKENS, 1), Aqk=products, Akkd=diagonal,
        Akk=inverse, scale=1.0, v_in=v, w_out=k, u_out=k, kg_out=k, cu_seqlens=None,
        chunk_indices=None, T=TOKENS, H=1, K=WIDTH, V=WIDTH,
        BT=TOKENS, BC=BLOCK, BK=WIDTH, BV=WIDTH,
        IS_VARLEN=False, USE_SAFE_GATE=False, FUSE_RECOMPUTE=False, FUSE_DIAGONAL=True,
    )  # fmt: skip
    q, k, g = (x[0, :, 0].double() for x in (q, k, gates))
    decays = torch.exp2((g[:, None] - g[None]).clamp(max=0))
    expected = torch.einsum("id,jd,ijd->ij", q, k, decays).tril()
    return products[0, :, 0].double(), expected


class TestKdaPrefill(CustomTestCase):
    def test_float32(self):
        torch.testing.assert_close(*compute_products(torch.float32), rtol=1e-5, atol=1e-5)

    def test_bfloat16(self):
        torch.testing.assert_close(*compute_products(torch.bfloat16), rtol=2e-2, atol=5e-2)


if __name__ == "__main__":
    unittest.main()
