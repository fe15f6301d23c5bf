"""Stand-ins of a router's scores and of scales that are packed by their exponents."""

from __future__ import annotations

import flashinfer
import pytest
import torch

from harness.sanitizer.device.refusals import UnansweredName
from harness.sanitizer.device.stand_ins import STAND_INS, call_stand_in
from harness.sanitizer.plugins.for_sglang.operators import load_stand_ins
from harness.sanitizer.plugins.for_sglang.operators.experts import dsv3_router_gemm
from harness.sanitizer.plugins.for_sglang.operators.quantization import pack_ue8m0_scales


def draw_values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_router_scores_each_token_for_each_expert_in_float32(dtype: torch.dtype) -> None:
    hidden, weights = draw_values(3, 64).bfloat16(), draw_values(8, 64).bfloat16()
    scores = torch.empty(3, 8, dtype=dtype)
    load_stand_ins()
    call_stand_in("jit:dsv3_router_gemm.dsv3_router_gemm", (hidden, weights, scores), {})
    exact = hidden.double() @ weights.double().T
    torch.testing.assert_close(scores.double(), exact, rtol=2**-8, atol=1e-4)
    assert STAND_INS["jit:dsv3_router_gemm.dsv3_router_gemm"].function is dsv3_router_gemm


@pytest.mark.parametrize("shape", [(5, 3), (8, 4), (2, 5, 6)])
def test_four_exponents_of_a_row_are_one_integer_and_columns_are_contiguous(
    shape: tuple[int, ...],
) -> None:
    exponents = torch.arange(1, 1 + torch.Size(shape).numel()).view(shape)
    packed = pack_ue8m0_scales(torch.ldexp(torch.ones(shape), exponents - 127))
    *groups, rows, columns = shape
    aligned = -(-rows // 4) * 4
    assert packed.shape == (*groups, rows, -(-columns // 4))
    assert packed.stride()[-2:] == (1, aligned)
    bytes_of_rows = packed.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    assert torch.equal(bytes_of_rows[..., :columns].long(), exponents)
    assert not bytes_of_rows[..., columns:].any()


def test_a_member_of_an_enumeration_is_the_number_that_its_stand_in_gives() -> None:
    load_stand_ins()
    kind = flashinfer.fused_moe.Fp8QuantizationType
    assert (int(kind.DeepSeekFp8), kind(1)) == (1, 1)
    with pytest.raises(UnansweredName, match=r"Fp8QuantizationType\.Other"):
        int(kind.Other)
