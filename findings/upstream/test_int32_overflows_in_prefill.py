# upstream: test/registered/unit/kernels
"""Prefill kernels find a token's row however many elements lie before it.

Triton's interpreter runs the one program of a far token on a CPU. The large tensors are one element
long: accesses behind them are listed and not made.
"""

import importlib
import unittest
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from sglang.test.ci.ci_register import register_cpu_ci
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

register_cpu_ci(est_time=15, suite="base-a-test-cpu")

INT32_ROWS = 1 << 31


def find_kernel(module, name):
    """Find the Python function of a kernel, which CUDA builds wrap twice."""
    kernel = getattr(importlib.import_module(f"sglang.kernels.ops.{module}"), name)
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def list_strays(kernel, program, arguments):
    """Run one program; return the addresses outside of its tensors."""
    tensors = [value for value in arguments.values() if torch.is_tensor(value)]
    strays, builder = set(), interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def keep_inside(at, mask):
        inside = np.zeros(at.data.shape, dtype=bool)
        for one in tensors:
            inside |= (at.data >= one.data_ptr()) & (at.data < one.data_ptr() + one.nbytes)
        strays.update(at.data[mask.data.astype(bool) & ~inside].tolist())
        return interpreter.TensorHandle(mask.data.astype(bool) & inside, tl.int1)

    def make_program_id(self, axis):
        value = program if axis == 0 else 0
        return interpreter.TensorHandle(np.array([value], dtype=np.int32), tl.int32)

    with (
        mock.patch.multiple(
            builder,
            create_masked_load=lambda s, at, mask, *rest: load(s, at, keep_inside(at, mask), *rest),
            create_masked_store=lambda s, at, value, mask, *rest: store(
                s, at, value, keep_inside(at, mask), *rest
            ),
            create_get_program_id=make_program_id,
        ),
        mock.patch.object(
            JITFunction,
            "__call__",
            lambda s, *rest, **named: interpreter.InterpretedFunction(s.fn)(*rest, **named),
        ),
    ):
        interpreter.InterpretedFunction(kernel)[(1,)](**arguments)
    return strays


class TestInt32OverflowsInPrefill(unittest.TestCase):
    def _check(self, kernel, token, widths, program=None, integers=(), **arguments):
        """Check that the token's row is the only one used of each large tensor."""
        large = {
            name: torch.zeros(1, dtype=torch.int64 if name in integers else torch.float16)
            for name in widths
        }
        strays = list_strays(kernel, token if program is None else program, {**large, **arguments})
        rows = {}
        for name, width in widths.items():
            row_bytes = width * large[name].element_size()
            start = large[name].data_ptr() + token * row_bytes
            rows[name] = {one for one in strays if start <= one < start + row_bytes}
            self.assertTrue(rows[name], f"nothing of the token's row in {name}")
        wrong = strays - set().union(*rows.values())
        self.assertFalse(wrong, "accesses to other memory")

    def _run_lora(self, kernel, token, widths, **arguments):
        ints = {
            "seg_indptr": [0, 1],
            "weight_indices": [0],
            "lora_ranks": [16],
            "permutation": [token],
        }
        self._check(
            kernel, token, widths, program=0,
            weights=torch.zeros(1 << 20, dtype=torch.float16), num_segs=1, NUM_SLICES=1,
            BLOCK_M=16, BLOCK_N=16, BLOCK_K=16,
            **{name: torch.tensor(value, dtype=torch.int32) for name, value in ints.items()},
            **arguments,
        )  # fmt: skip

    def test_lora_expand_gate_and_up_of_llama_8b(self):
        kernel = find_kernel("lora.dense.chunked_sgmv_expand", "_chunked_lora_expand_kernel")
        width = 28672
        token = INT32_ROWS // width + 1
        self._run_lora(
            kernel, token, {"output": width}, x=torch.zeros(token + 1, 16, dtype=torch.float16),
            scalings=torch.ones(1), slice_offsets=torch.tensor([0, width], dtype=torch.int32),
            OUTPUT_DIM=width, MAX_RANK=16,
            output_stride_0=width, output_stride_1=1, SLICE_OFFSETS=(),
        )  # fmt: skip

    def test_lora_shrink(self):
        width = 1 << 14
        token = INT32_ROWS // width
        for name, more in (
            ("_chunked_lora_shrink_kernel", {}),
            ("_chunked_lora_shrink_split_k_kernel", {"SPLIT_K": 1, "TOTAL_ROWS": 1}),
        ):
            with self.subTest(name):
                kernel = find_kernel("lora.dense.chunked_sgmv_shrink", name)
                output = torch.zeros(token + 1, 16, dtype=torch.float16)
                self._run_lora(kernel, token, {"x": width}, output=output, N=16, K=width, **more)

    def test_gdn_split_of_qwen3_next(self):
        kernel = find_kernel(
            "attention.triton_gdn_fused_proj", "fused_qkv_split_gdn_prefill_kernel"
        )
        self._check(
            kernel, INT32_ROWS // 8192, {"q": 2048, "k": 2048, "v": 4096, "mixed_qkv": 8192},
            MIXED_QKV_STRIDE_T=8192, MIXED_QKV_STRIDE_D=1, BLOCK_SIZE=8192,
            NUM_Q_HEADS=16, NUM_K_HEADS=16, NUM_V_HEADS=32, HEAD_Q=128, HEAD_K=128, HEAD_V=128,
        )  # fmt: skip

    def test_gdn_reshape_of_qwen3_next(self):
        kernel = find_kernel(
            "attention.triton_gdn_fused_proj", "fused_qkvzba_split_reshape_cat_kernel"
        )
        widths = {"mixed_qkv": 8192, "z": 4096, "b": 32, "a": 32, "mixed_qkvz": 12288}
        widths["mixed_ba"] = 64
        self._check(
            kernel, INT32_ROWS // 12288 + 1, widths,
            NUM_HEADS_QK=16, NUM_HEADS_V=32, HEAD_QK=128, HEAD_V=128,
        )  # fmt: skip

    def test_mla_keys_of_deepseek_v3(self):
        kernel = find_kernel("attention.mla_qk_prep", "concat_and_cast_mha_k_kernel")
        self._check(
            kernel, INT32_ROWS // 16384, {"k_ptr": 24576, "k_nope_ptr": 16384, "k_rope_ptr": 64},
            head_cnt=64, k_stride0=24576, k_stride1=192, nope_stride0=16384, nope_stride1=256,
            rope_stride0=64, nope_dim=128, rope_dim=64,
        )  # fmt: skip

    def test_dsv4_gather_as_fp8(self):
        kernel = find_kernel(
            "attention.dsv4.dequant_k_cache", "_gather_dequant_requant_fp8_paged_kernel"
        )
        bytes_of = torch.zeros(1024, dtype=torch.uint8)
        token = INT32_ROWS // 512
        self._check(
            kernel, token, {"output_ptr": 512, "page_table_ptr": 1}, integers=("page_table_ptr",),
            buf_fp8_ptr=bytes_of.view(torch.float8_e4m3fn),
            buf_bf16_ptr=bytes_of.view(torch.bfloat16), buf_uint8_ptr=bytes_of,
            output_stride_0=512, BYTES_PER_PAGE=1024, PAGE_SIZE=1,
            DIM_NOPE=448, DIM_ROPE=64, TILE_SIZE=64, NUM_SCALE_TILES=7, NOPE_ROPE_BYTES=576,
            PADDED_SCALE_PER_TOKEN=8, S_OFFSET_BYTES=576,
        )  # fmt: skip


if __name__ == "__main__":
    unittest.main()
