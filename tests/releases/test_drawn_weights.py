"""Random weights instead of trained ones: reproducible, and such that a fault shows."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from harness.workers.servers.adaptations import LM_HEAD_SCALE, fill_random_weights


def make_model() -> nn.Module:
    model = nn.Module()
    model.embed_tokens = nn.Embedding(64, 256)
    model.proj = nn.Linear(256, 256)
    model.norm = nn.LayerNorm(256)
    model.experts = nn.Parameter(torch.zeros(4, 256, 256, dtype=torch.bfloat16))
    model.lm_head = nn.Linear(256, 64, bias=False)
    model.register_buffer("table", torch.arange(5))
    return model


def test_each_weight_is_drawn_from_its_own_name_and_again_the_same() -> None:
    first, second = make_model(), make_model()
    fill_random_weights(first)
    torch.manual_seed(17)
    fill_random_weights(second)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name
    assert not torch.equal(first.proj.weight, first.lm_head.weight.repeat(4, 1))


def test_a_matrix_keeps_the_size_of_what_goes_through_it() -> None:
    model = make_model()
    fill_random_weights(model)
    through = model.norm(model.embed_tokens(torch.arange(64)))
    assert 0.8 < model.proj(through).std() < 1.25
    assert 0.8 * LM_HEAD_SCALE < model.lm_head(through).std() < 1.25 * LM_HEAD_SCALE
    assert 0.05 < (through @ model.experts[0].float()).std() < 0.5
    assert torch.equal(model.table, torch.arange(5))


@pytest.mark.filterwarnings("ignore")
def test_sglang_makes_its_dummy_weights_by_it() -> None:
    from sglang.srt.model_loader import loader, weight_utils

    from harness.workers.servers import adaptations

    before = loader.initialize_dummy_weights, weight_utils.initialize_dummy_weights
    try:
        adaptations.apply_adaptations([adaptations.RANDOM_WEIGHTS])
        assert loader.initialize_dummy_weights is fill_random_weights
        assert "initialize_dummy_weights(model)" in inspect.getsource(loader)
    finally:
        loader.initialize_dummy_weights, weight_utils.initialize_dummy_weights = before
