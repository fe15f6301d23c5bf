"""Quantized weights and adapters: what a file stores is what transformers computes with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from harness.runs.zoo.adapters import SCALING, Adapter
from harness.runs.zoo.architecture import QuantizedWeights
from harness.runs.zoo.weight_formats import FORMATS, QuantizedWeightFile
from harness.sanitizer.device.stand_ins import JitBuild
from harness.sanitizer.plugins.for_sglang.operators.gemms import bmm_fp8
from harness.sanitizer.plugins.for_sglang.operators.quantization import (
    awq_dequantize,
    dequantize_awq,
    int8_scaled_mm,
    per_tensor_quant_fp8,
    per_token_group_quant,
    per_token_quant_fp8,
    sgl_per_token_group_quant_8bit,
)

NAME = "mlp.down_proj.weight"
ROWS, COLUMNS, GROUP = 64, 96, 32


class OneProjection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.down_proj = nn.Linear(COLUMNS, ROWS, bias=False)
        self.norm = nn.Linear(2, 2, bias=False)
        nn.init.normal_(self.mlp.down_proj.weight, generator=torch.Generator().manual_seed(1))


def store_one(kind: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Quantize one matrix; return its floats and the tensors of the file by their last names."""
    file, model = QuantizedWeightFile(QuantizedWeights(kind, group=GROUP)), OneProjection()
    file.round_weights(model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stored = file.store_weights(state)
    assert torch.equal(stored.pop("norm.weight"), model.norm.weight)
    return file.floats[NAME], {name.rpartition(".")[2]: tensor for name, tensor in stored.items()}


def draw_weights(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def draw_int8(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator)


def unpack_value(whole: int, place: int) -> int:
    return whole >> 4 * place & 0xF


@pytest.mark.parametrize("kind", ["fp8_blocks", "int8_blocks"])
def test_a_block_has_one_scale(kind: str) -> None:
    floats, stored = store_one(kind)
    scales = stored["weight_scale_inv"]
    assert scales.shape == (ROWS // GROUP, COLUMNS // GROUP)
    whole = scales.repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)
    assert torch.equal(stored["weight"].float() * whole, floats)


def test_an_output_in_int8_has_one_scale() -> None:
    floats, stored = store_one("int8_channels")
    assert stored["weight_scale"].shape == (ROWS, 1)
    assert torch.equal(stored["weight"].float() * stored["weight_scale"], floats)


def test_awq_has_every_second_column_in_the_upper_half_of_its_integer() -> None:
    floats, stored = store_one("awq")
    assert stored["qweight"].shape == (COLUMNS, ROWS // 8)
    for column, row in [(0, 0), (33, 1), (95, 62), (40, 13)]:  # of the matrix, which is transposed
        place = [0, 4, 1, 5, 2, 6, 3, 7][row % 8]
        code = unpack_value(int(stored["qweight"][column, row // 8]), place)
        zero = unpack_value(int(stored["qzeros"][column // GROUP, row // 8]), place)
        scale = stored["scales"][column // GROUP, row].float()
        assert (code - zero) * scale == floats[row, column]


def test_gptq_stores_zeros_less_one_and_inputs_one_after_another() -> None:
    floats, stored = store_one("gptq")
    assert stored["g_idx"].tolist() == [column // GROUP for column in range(COLUMNS)]
    for column, row in [(0, 0), (33, 1), (95, 62), (40, 13)]:
        group = column // GROUP
        code = unpack_value(int(stored["qweight"][column // 8, row]), column % 8)
        zero = unpack_value(int(stored["qzeros"][group, row // 8]), row % 8) + 1
        assert (code - zero) * stored["scales"][group, row].float() == floats[row, column]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", FORMATS)
def test_the_scale_or_zero_of_a_neighbouring_block_means_other_floats(kind: str, axis: int) -> None:
    floats, _ = store_one(kind)
    form = FORMATS[kind](QuantizedWeights(kind, group=GROUP))
    parts = form.quantize(form.split(floats))
    if parts[1].shape[axis] == 1:
        return  # int8_channels has one scale for all inputs
    restored = form.restore(*parts)
    for number in range(1, len(parts)):
        moved = list(parts)
        moved[number] = parts[number].roll(1, axis)
        assert (form.restore(*moved) - restored).norm() > 0.2 * floats.norm()


@pytest.mark.parametrize("kind", ["awq", "gptq"])
def test_zeros_differ_from_those_of_both_neighbours(kind: str) -> None:
    floats, _ = store_one(kind)
    form = FORMATS[kind](QuantizedWeights(kind, group=GROUP))
    zeros = form.quantize(form.split(floats))[2].squeeze(-1)
    assert zeros.diff(dim=0).abs().min() >= 1
    assert zeros.diff(dim=1).abs().min() >= 1


def test_a_matrix_that_was_not_quantized_is_an_error() -> None:
    file = QuantizedWeightFile(QuantizedWeights("awq"))
    with pytest.raises(ValueError, match=r"down_proj\.weight is none of the matrices"):
        file.store_weights({NAME: torch.ones(2, 2)})


def test_a_matrix_without_whole_blocks_is_an_error_with_its_sizes() -> None:
    file = QuantizedWeightFile(QuantizedWeights("fp8_blocks", group=40))
    with pytest.raises(ValueError, match="64 x 96 has no whole blocks of 40 x 40"):
        file.round_weights(OneProjection())


def test_experts_in_one_tensor_are_stored_one_by_one() -> None:
    file, model = QuantizedWeightFile(QuantizedWeights("int8_blocks", group=2)), nn.Module()
    model.register_parameter("gate_up_proj", nn.Parameter(torch.randn(3, 8, 4)))
    file.round_weights(model)
    halves = {
        f"{number}.{name}_proj.weight": half
        for number, expert in enumerate(file.floats["gate_up_proj"])
        for name, half in zip(["gate", "up"], expert.chunk(2), strict=True)
    }
    stored = file.store_weights(halves)
    for name in ("gate", "up"):
        floats = halves[f"1.{name}_proj.weight"]
        scales = stored[f"1.{name}_proj.weight_scale_inv"].repeat_interleave(2, 0)
        codes = stored[f"1.{name}_proj.weight"].float()
        assert torch.equal(codes * scales.repeat_interleave(2, 1), floats)


def test_experts_that_a_file_has_in_one_tensor_are_an_error() -> None:
    file, model = QuantizedWeightFile(QuantizedWeights("int8_blocks", group=2)), nn.Module()
    model.register_parameter("down_proj", nn.Parameter(torch.randn(3, 8, 4)))
    file.round_weights(model)
    with pytest.raises(ValueError, match="no quantized matrix of down_proj"):
        file.store_weights({"down_proj": model.down_proj.detach()})


def test_an_adapter_adds_its_products_while_it_is_applied() -> None:
    model, x = OneProjection(), torch.randn(3, COLUMNS)
    adapter = Adapter(model, 0, rank=4)
    a, b = adapter.products["mlp.down_proj"]
    plain = model.mlp.down_proj(x)
    with adapter.apply():
        adapted = model.mlp.down_proj(x)
    torch.testing.assert_close(adapted, plain + SCALING * x @ a.T @ b.T)
    assert torch.equal(model.mlp.down_proj(x), plain)


def test_the_stand_in_reads_what_awq_stores() -> None:
    floats, stored = store_one("awq")
    out = torch.empty(COLUMNS, ROWS)
    awq_dequantize(out, stored["qweight"], stored["scales"], stored["qzeros"])
    assert torch.equal(out.T, floats)
    half = dequantize_awq(stored["qweight"], stored["scales"], stored["qzeros"])
    assert torch.equal(half.T, floats.half())


def test_groups_of_tokens_are_rounded_as_their_formats_say() -> None:
    x = draw_weights(3, COLUMNS)
    for kind, dtype in [("int8_blocks", torch.int8), ("fp8_blocks", torch.float8_e4m3fn)]:
        form = FORMATS[kind](QuantizedWeights(kind, group=GROUP))
        codes, scales = torch.empty(3, COLUMNS, dtype=dtype), torch.empty(3, COLUMNS // GROUP)
        per_token_group_quant(x, codes, scales)
        assert torch.equal(codes.float() * scales.repeat_interleave(GROUP, 1), form.round_inputs(x))
        again, bound = torch.empty_like(codes), 127 if dtype == torch.int8 else 448.0
        sgl_per_token_group_quant_8bit(x, again, scales, GROUP, 1e-10, -bound, bound)
        assert torch.equal(again.float(), codes.float())


@pytest.mark.parametrize("limits", [(1e-6, -127, 127), (1e-10, -126, 127), (1e-10, -127, 126)])
def test_other_limits_of_codes_are_refused(limits: tuple[float, int, int]) -> None:
    codes, scales = torch.empty(3, COLUMNS, dtype=torch.int8), torch.empty(3, 1)
    with pytest.raises(NotImplementedError, match="codes up to 127, not"):
        sgl_per_token_group_quant_8bit(draw_weights(3, COLUMNS), codes, scales, COLUMNS, *limits)


def test_the_product_of_integers_has_both_scales() -> None:
    codes, weight = draw_int8(3, COLUMNS), draw_int8(COLUMNS, ROWS)
    scales, factors = draw_weights(3, 1).abs(), draw_weights(ROWS, 1).abs()
    product = int8_scaled_mm(codes, weight, scales, factors, torch.float32)
    exact = (codes.double() * scales) @ (weight.double() * factors.T)
    torch.testing.assert_close(product.double(), exact, rtol=1e-5, atol=1e-4)


def test_each_token_or_a_whole_tensor_is_rounded_to_fp8_by_its_scale() -> None:
    x = draw_weights(3, COLUMNS) * torch.tensor([[0.5], [3.0], [7.0]])
    codes = torch.empty(3, COLUMNS, dtype=torch.float8_e4m3fn)
    scales, scale = torch.empty(3, 1), torch.zeros(1)
    per_token_quant_fp8(x, codes, scales)
    torch.testing.assert_close(codes.double() * scales, x.double(), rtol=2**-4, atol=1e-3)
    torch.testing.assert_close(scales, x.abs().amax(1, keepdim=True) / 448)
    build = (JitBuild(("per_tensor_quant_fp8", static), "") for static in ("false", "true"))
    per_tensor_quant_fp8(x, codes, scale, next(build))
    torch.testing.assert_close(codes.double() * scale, x.double(), rtol=2**-4, atol=1e-3)
    torch.testing.assert_close(scale, x.abs().max().view(1) / 448)
    larger_scale = 2 * scale
    per_tensor_quant_fp8(x, codes, larger_scale, next(build))
    torch.testing.assert_close(codes.double() * larger_scale, x.double(), rtol=2**-4, atol=2e-3)
    assert torch.equal(larger_scale, 2 * scale)


def test_products_of_fp8_matrices_have_both_scales() -> None:
    a, b = (draw_weights(*shape).to(torch.float8_e4m3fn) for shape in [(2, 3, 8), (2, 8, 5)])
    a_scale, b_scale = torch.tensor([0.5]), torch.tensor([3.0])
    out = torch.empty(2, 3, 5)
    product = bmm_fp8(a, b, a_scale, b_scale, torch.float32, out)
    exact = (a.double() * 0.5) @ (b.double() * 3.0)
    torch.testing.assert_close(product.double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(out, product)
