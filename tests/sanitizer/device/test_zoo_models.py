"""What the zoo knows before it serves: how pools continue chunks, and the scale of experts."""

from __future__ import annotations

import pytest
import torch

from fixtures.loaded_model import refuses_second_chunk
from harness.runs.zoo.reference_model import DoublePrecision, draw_weights


class PoolOfOneChunk:
    def alloc(self, requests: list[object]) -> None:
        assert len(requests) <= 1, "only one chunked request may reuse req_pool_idx in a batch"


class PoolOfManyChunks:
    def alloc(self, requests: list[object]) -> None:
        # assert len(requests) <= 1, "only one chunked request may reuse req_pool_idx"
        assert requests


class HybridPool(PoolOfOneChunk):
    def alloc(self, requests: list[object]) -> None:
        super().alloc(requests)


def test_an_assertion_about_chunks_counts_where_it_runs() -> None:
    assert refuses_second_chunk(PoolOfOneChunk)
    assert refuses_second_chunk(HybridPool)
    assert not refuses_second_chunk(PoolOfManyChunks)


def test_experts_have_one_scale_however_transformers_holds_them() -> None:
    class Held(torch.nn.Module):
        def __init__(self, experts: torch.nn.Module) -> None:
            super().__init__()
            self.experts = experts

    apart = Held(torch.nn.ModuleList([torch.nn.Linear(64, 64, bias=False) for _ in range(4)]))
    together = Held(torch.nn.ParameterDict({"up": torch.empty(4, 64, 64)}))
    deviations = []
    for model in (apart, together):
        holder = torch.nn.ModuleDict({"mlp": model})
        draw_weights(holder)
        weights = torch.cat([one.flatten() for one in holder.parameters()])
        deviations.append(float(weights.detach().std()))
    assert deviations == pytest.approx([1 / 16, 1 / 16], rel=0.03)


def test_what_a_model_computes_in_float32_is_float64_in_the_exact_run() -> None:
    def route(hidden: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Compute as a router does that multiplies in float32, whatever the model's type is."""
        scores = hidden.float() @ gate.to(torch.float32)
        return torch.zeros(3, dtype=torch.float32).index_add_(
            0, torch.arange(3), scores.softmax(-1, dtype=torch.float32)
        )

    torch.manual_seed(0)
    hidden, gate = torch.randn(4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    with DoublePrecision():
        exact = route(hidden, gate)
    assert exact.dtype == torch.float64
    assert torch.equal(exact, (hidden @ gate).softmax(-1))
    assert route(hidden, gate).dtype == torch.float32
