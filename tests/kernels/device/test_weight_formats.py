"""Quantized weights and adapters: what a file stores is what transformers computes with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fixtures.zoo.adapters import SCALING, Adapter
from fixtures.zoo.weight_formats import FORMATS, QuantizedWeightFile
from harness.device.operators.quantization import (
    awq_dequantize,
    dequantize_awq,
    int8_scaled_mm,
    per_token_group_quant,
    sgl_per_token_group_quant_8bit,
)
from harness.runs.zoo.architecture import QuantizedWeights

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


def unpack(whole: int, place: int) -> int:
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
        code = unpack(int(stored["qweight"][column, row // 8]), place)
        zero = unpack(int(stored["qzeros"][column // GROUP, row // 8]), place)
        scale = stored["scales"][column // GROUP, row].float()
        assert (code - zero) * scale == floats[row, column]


def test_gptq_stores_zeros_less_one_and_inputs_one_after_another() -> None:
    floats, stored = store_one("gptq")
    assert stored["g_idx"].tolist() == [column // GROUP for column in range(COLUMNS)]
    for column, row in [(0, 0), (33, 1), (95, 62), (40, 13)]:
        group = column // GROUP
        code = unpack(int(stored["qweight"][column // 8, row]), column % 8)
        zero = unpack(int(stored["qzeros"][group, row // 8]), row % 8) + 1
        assert (code - zero) * stored["scales"][group, row].float() == floats[row, column]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_scale_of_another_cell_means_other_floats(kind: str) -> None:
    floats, _ = store_one(kind)
    form = FORMATS[kind](QuantizedWeights(kind, group=GROUP))
    codes, scales, *zeros = form.quantize(form.split(floats))
    moved = form.restore(codes, scales.roll(1, 0), *zeros)
    assert (moved - form.restore(codes, scales, *zeros)).norm() > 0.2 * floats.norm()


def test_a_matrix_that_was_not_quantized_is_an_error() -> None:
    file = QuantizedWeightFile(QuantizedWeights("awq"))
    with pytest.raises(ValueError, match=r"down_proj\.weight is none of the matrices"):
        file.store_weights({NAME: torch.ones(2, 2)})


def test_a_matrix_without_whole_cells_is_an_error_with_its_sizes() -> None:
    file = QuantizedWeightFile(QuantizedWeights("fp8_blocks", group=40))
    with pytest.raises(ValueError, match="64 x 96 has no whole cells of 40 x 40"):
        file.round_weights(OneProjection())


def test_experts_in_one_tensor_are_stored_one_by_one() -> None:
    file, model = QuantizedWeightFile(QuantizedWeights("int8_blocks", group=2)), nn.Module()
    model.register_parameter("gate_up_proj", nn.Parameter(torch.randn(3, 8, 4)))
    file.round_weights(model)
    gate, up = file.floats["gate_up_proj"][1].chunk(2)
    stored = file.store_weights({"1.gate_proj.weight": gate, "1.up_proj.weight": up})
    for name, floats in {"gate": gate, "up": up}.items():
        scales = stored[f"1.{name}_proj.weight_scale_inv"].repeat_interleave(2, 0)
        codes = stored[f"1.{name}_proj.weight"].float()
        assert torch.equal(codes * scales.repeat_interleave(2, 1), floats)


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


def test_groups_of_tokens_are_rounded_and_multiplied_as_their_formats_say() -> None:
    form, x = FORMATS["int8_channels"](QuantizedWeights("int8_channels")), torch.randn(3, COLUMNS)
    codes, scales = torch.empty(3, COLUMNS, dtype=torch.int8), torch.empty(3, 1)
    per_token_group_quant(x, codes, scales)
    assert torch.equal(codes * scales, form.round_inputs(x))
    again = torch.empty_like(codes)
    sgl_per_token_group_quant_8bit(x, again, scales, COLUMNS, 1e-10, -127, 127)
    assert torch.equal(again, codes)
    weight = torch.randint(-127, 128, (COLUMNS, ROWS), dtype=torch.int8)
    product = int8_scaled_mm(codes, weight, scales, torch.full((ROWS, 1), 0.5), torch.float32)
    exact = form.round_inputs(x).double() @ (weight * 0.5).double()
    torch.testing.assert_close(product.double(), exact, rtol=1e-5, atol=1e-4)
