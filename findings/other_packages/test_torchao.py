"""Two bugs of torchao 0.18.0, which `torchao.patch` mends (`git apply --unidiff-zero`).

Run with torchao installed: `python -m pytest --sanitize=bounds test_torchao.py`. The reads past the
end change no result, so that test fails under a sanitizer alone; the other one fails on any GPU.
"""

import pytest

torch = pytest.importorskip("torch")
kernels = pytest.importorskip("torchao.prototype.blockwise_fp8_training.kernels")
jagged = pytest.importorskip("torchao.prototype.moe_training.kernels.jagged_float8_scales")

BLOCK = 128


def make_column_major(rows, columns):
    return torch.ones(columns, rows, device="cuda").t()


@pytest.mark.parametrize("is_blockwise", [True, False])
def test_gemm_reads_no_scales_beyond_the_rows_of_a(is_blockwise):
    M = 5  # no multiple of a block
    a = torch.ones(M, BLOCK, device="cuda").to(torch.float8_e4m3fn)
    b = torch.ones(BLOCK, BLOCK, device="cuda").to(torch.float8_e4m3fn).t()
    if is_blockwise:
        gemm, b_s = kernels.triton_fp8_gemm_1x128_128x128, make_column_major(1, 1)
    else:
        gemm, b_s = kernels.triton_fp8_gemm_1x128_128x1, torch.ones(1, BLOCK, device="cuda")
    out = gemm(a, b, make_column_major(M, 1), b_s, out_dtype=torch.float32)
    torch.testing.assert_close(out, torch.full_like(out, BLOCK))


def test_rowwise_scales_keep_each_element_in_its_place():
    x = torch.arange(1.0, 33.0, device="cuda", dtype=torch.bfloat16).view(4, 8)
    ends = torch.tensor([4, 8], device="cuda", dtype=torch.int32)
    data, scales = jagged.triton_fp8_per_group_rowwise_scales(
        x, ends, round_scales_to_power_of_2=True
    )
    restored = data.float() / scales.view(2, 4).t().repeat_interleave(4, dim=1)
    torch.testing.assert_close(restored, x.float(), rtol=0.1, atol=0.1)
