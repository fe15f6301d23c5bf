"""Quantized weights and adapters: what a file stores is what transformers computes with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from harness.runs.zoo.adapters import SCALING, Adapter
from harness.runs.zoo.architecture import QuantizedWeights
from harness.runs.zoo.weight_formats import FORMATS, QuantizedWeightFile
from harness.sanitizer.plugins.for_sglang.operators.quantization import (
    awq_dequantize,
    dequantize_awq,
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
